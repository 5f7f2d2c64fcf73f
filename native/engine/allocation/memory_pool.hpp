// SPDX-License-Identifier: Apache-2.0
// The chunks of one pool, the range in which they lie in order, and the stitched ranges over them:
// carries out what the packer decides.  A step that fails leaves no trace.  The caller locks, and
// sees to it that nothing uses what is unmapped.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/undo.hpp"
#include "driver/driver.hpp"
#include "policy/packing/packer.hpp"

namespace penstock::engine {

namespace packing = policy::packing;

class MemoryPool {
 public:
  // A line of so many slots; no memory yet.
  static Result<std::unique_ptr<MemoryPool>> create(driver::Driver& driver,
                                                    const packing::Options& options,
                                                    std::uint64_t slots) {
    std::unique_ptr<MemoryPool> pool(new MemoryPool(driver, options, slots));
    PENSTOCK_ASSIGN(pool->base_, driver.reserve(slots * options.smallest_chunk));
    return pool;
  }
  ~MemoryPool() {
    if (base_ == 0) return;
    for (packing::RangeId id = 0; id < packer_.ranges().ids(); ++id) {
      const packing::StitchedRange& range = packer_.ranges()[id];
      if (range.state == packing::StitchedRange::State::kDropped) continue;
      (void)driver_.unmap(ranges_[id], range.mapped);
      (void)driver_.unreserve(ranges_[id], range.mapped);
    }
    const auto& extents = packer_.extents();
    for (std::uint64_t slot = 0; slot < handles_.size(); ++slot) {
      if (handles_[slot] == driver::Chunk{}) continue;
      const packing::Piece chunk = extents.chunk_at(slot * slot_bytes());
      (void)driver_.unmap(base_ + chunk.start, chunk.bytes);
      (void)driver_.release_chunk(handles_[slot]);
    }
    (void)driver_.unreserve(base_, handles_.size() * slot_bytes());
  }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  [[nodiscard]] packing::Packer& packer() { return packer_; }
  [[nodiscard]] const packing::Packer& packer() const { return packer_; }
  [[nodiscard]] Addr base() const { return base_; }
  [[nodiscard]] Addr address_of(packing::BlockId id) const {
    const auto& block = packer_.block(id);
    if (block.range == packing::kNone) return base_ + block.offset;
    // The range begins with the chunk in which the block does.
    return ranges_[block.range] + block.offset - packer_.extents().chunk_at(block.offset).start;
  }
  [[nodiscard]] Addr range_address(packing::RangeId range) const { return ranges_[range]; }
  [[nodiscard]] std::uint64_t chunks() const { return chunks_; }
  [[nodiscard]] std::int64_t driver_calls() const { return driver_calls_; }

  Status grow(const packing::Decision& decision, packing::StreamTag tag) {
    std::vector<packing::Piece> made;
    made.reserve(decision.chunks.size());
    Undo release([&] {
      for (const packing::Piece& chunk : made) {
        driver::Chunk& handle = handles_[chunk.start / slot_bytes()];
        (void)driver_.release_chunk(std::exchange(handle, driver::Chunk{}));
      }
    });
    std::uint64_t slot = decision.first_slot;
    for (const std::uint32_t slots : decision.chunks) {
      ++driver_calls_;
      const Bytes bytes = slots * slot_bytes();
      PENSTOCK_ASSIGN(handles_[slot], driver_.create_chunk(bytes, driver::Place::kDevice));
      made.push_back({slot * slot_bytes(), bytes});
      slot += slots;
    }
    const Addr address = base_ + decision.first_slot * slot_bytes();
    PENSTOCK_TRY(map_chunks(address, made));
    Undo unmap([&] { (void)driver_.unmap(address, decision.slots() * slot_bytes()); });
    PENSTOCK_TRY(guarded([&] { return packer_.grown(decision, tag), Status{}; }));
    unmap.keep();
    release.keep();
    chunks_ += made.size();
    return {};
  }
  Result<packing::RangeId> stitch(std::vector<packing::Piece> pieces) {
    const std::vector<packing::Piece> chunks = packer_.ranges().chunks_of(pieces);
    // Nothing may fail once the packer knows of the range.
    room_for(ranges_, packer_.ranges().ids() + 1);
    Bytes bytes = 0;
    for (const packing::Piece& chunk : chunks) bytes += chunk.bytes;
    ++driver_calls_;
    PENSTOCK_ASSIGN(const Addr address, driver_.reserve(bytes));
    Undo unreserve([&] { (void)driver_.unreserve(address, bytes); });
    PENSTOCK_TRY(map_chunks(address, chunks));
    Undo unmap([&] { (void)driver_.unmap(address, bytes); });
    const packing::RangeId id = packer_.stitched(std::move(pieces));
    if (id >= ranges_.size()) ranges_.resize(id + 1);
    ranges_[id] = address;
    unmap.keep();
    unreserve.keep();
    return id;
  }
  Status drop_range(packing::RangeId id) {
    const Bytes bytes = packer_.ranges()[id].mapped;
    driver_calls_ += 2;
    PENSTOCK_TRY(driver_.unmap(ranges_[id], bytes));
    packer_.drop_range(id);
    return driver_.unreserve(ranges_[id], bytes);
  }
  // Give back the free chunks, and before that the idle stitched ranges that map them.  What is in
  // `trimmed` has gone, whatever the status.
  struct Trimmed {
    std::vector<Span> ranges;
    std::vector<Span> runs;  // of chunks that lay side by side
  };
  Status trim(Trimmed& trimmed) {
    for (const packing::Packer::Run& run : packer_.free_runs()) {
      for (const packing::RangeId id : packer_.idle_ranges(run)) {
        const Span range{ranges_[id], packer_.ranges()[id].mapped};
        room_for(trimmed.ranges, trimmed.ranges.size() + 1);
        PENSTOCK_TRY(drop_range(id));
        trimmed.ranges.push_back(range);
      }
      const Span span{base_ + run.first_slot * slot_bytes(), run.slots * slot_bytes()};
      room_for(trimmed.runs, trimmed.runs.size() + 1);
      ++driver_calls_;
      const Status status =
          packer_.vacate(run, [&] { return driver_.unmap(span.address, span.bytes); });
      if (status.code() == Code::kNotReady) continue;  // another time
      PENSTOCK_TRY(status);
      for (std::uint64_t slot = run.first_slot; slot < run.first_slot + run.slots; ++slot) {
        if (handles_[slot] == driver::Chunk{}) continue;
        ++driver_calls_;
        --chunks_;
        (void)driver_.release_chunk(std::exchange(handles_[slot], driver::Chunk{}));
      }
      trimmed.runs.push_back(span);
    }
    return {};
  }

 private:
  MemoryPool(driver::Driver& driver, const packing::Options& options, std::uint64_t slots)
      : driver_(driver), options_(options), packer_(options, slots), handles_(slots) {}
  [[nodiscard]] Bytes slot_bytes() const { return options_.smallest_chunk; }
  Status map_chunks(Addr address, const std::vector<packing::Piece>& chunks) {
    Bytes mapped = 0;
    Undo unmap([&] {
      if (mapped > 0) (void)driver_.unmap(address, mapped);
    });
    for (const packing::Piece& chunk : chunks) {
      ++driver_calls_;
      const driver::Chunk handle = handles_[chunk.start / slot_bytes()];
      PENSTOCK_TRY(driver_.map(address + mapped, chunk.bytes, handle));
      mapped += chunk.bytes;
    }
    ++driver_calls_;
    PENSTOCK_TRY(driver_.set_access(address, mapped));
    unmap.keep();
    return {};
  }

  driver::Driver& driver_;
  packing::Options options_;
  packing::Packer packer_;
  Addr base_ = 0;
  std::vector<driver::Chunk> handles_;  // by the first slot of each
  std::vector<Addr> ranges_;            // by RangeId
  std::uint64_t chunks_ = 0;
  std::int64_t driver_calls_ = 0;
};

}  // namespace penstock::engine
