// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation/memory_pool.hpp"

#include <utility>

namespace penstock::engine {

using policy::packing::BlockId;
using policy::packing::Decision;
using policy::packing::kNone;
using policy::packing::Packer;
using policy::packing::Piece;
using policy::packing::RangeId;
using policy::packing::StitchedRange;
using policy::packing::StreamTag;

Result<std::unique_ptr<MemoryPool>> MemoryPool::create(driver::Driver& driver,
                                                       const policy::packing::Options& options,
                                                       std::uint64_t slots) {
  std::unique_ptr<MemoryPool> pool(new MemoryPool(driver, options, slots));
  PENSTOCK_ASSIGN(pool->base_, driver.reserve(slots * options.smallest_chunk));
  return pool;
}

MemoryPool::~MemoryPool() {
  if (base_ == 0) return;
  for (RangeId id = 0; id < packer_.ranges().ids(); ++id) {
    const StitchedRange& range = packer_.ranges()[id];
    if (range.state == StitchedRange::State::kDropped) continue;
    (void)driver_.unmap(ranges_[id], range.mapped);
    (void)driver_.unreserve(ranges_[id], range.mapped);
  }
  const auto& extents = packer_.extents();
  for (std::uint64_t slot = 0; slot < handles_.size(); ++slot) {
    if (handles_[slot] == driver::Chunk{}) continue;
    const Piece chunk = extents.chunk_at(slot * slot_bytes());
    (void)driver_.unmap(base_ + chunk.start, chunk.bytes);
    (void)driver_.release_chunk(handles_[slot]);
  }
  (void)driver_.unreserve(base_, handles_.size() * slot_bytes());
}

Addr MemoryPool::address_of(BlockId id) const {
  const auto& block = packer_.block(id);
  if (block.range == kNone) return base_ + block.offset;
  // The range begins with the chunk in which the block does.
  return ranges_[block.range] + block.offset - packer_.extents().chunk_at(block.offset).start;
}

Status MemoryPool::map_chunks(Addr address, const std::vector<Piece>& chunks) {
  Bytes mapped = 0;
  Status status;
  for (const Piece& chunk : chunks) {
    ++driver_calls_;
    status = driver_.map(address + mapped, chunk.bytes, handles_[chunk.start / slot_bytes()]);
    if (!status.ok()) break;
    mapped += chunk.bytes;
  }
  if (status.ok()) {
    ++driver_calls_;
    status = driver_.set_access(address, mapped);
  }
  if (!status.ok() && mapped > 0) (void)driver_.unmap(address, mapped);
  return status;
}

Status MemoryPool::grow(const Decision& decision, StreamTag tag) {
  std::vector<Piece> made;
  made.reserve(decision.chunks.size());
  const auto release = [&] {
    for (const Piece& chunk : made) {
      driver::Chunk& handle = handles_[chunk.start / slot_bytes()];
      (void)driver_.release_chunk(std::exchange(handle, driver::Chunk{}));
    }
  };
  Status status;
  std::uint64_t slot = decision.first_slot;
  for (const std::uint32_t slots : decision.chunks) {
    ++driver_calls_;
    const Bytes bytes = slots * slot_bytes();
    Result<driver::Chunk> chunk = driver_.create_chunk(bytes, driver::Place::kDevice);
    if (!chunk.ok()) {
      status = chunk.status();
      break;
    }
    handles_[slot] = chunk.value();
    made.push_back({slot * slot_bytes(), bytes});
    slot += slots;
  }
  const Addr address = base_ + decision.first_slot * slot_bytes();
  if (status.ok()) status = map_chunks(address, made);
  if (!status.ok()) {
    release();
    return status;
  }
  status = guarded([&] { return packer_.grown(decision, tag), Status{}; });
  if (!status.ok()) {
    (void)driver_.unmap(address, decision.slots() * slot_bytes());
    release();
    return status;
  }
  chunks_ += static_cast<std::int64_t>(made.size());
  return {};
}

Result<RangeId> MemoryPool::stitch(std::vector<Piece> pieces) {
  const std::vector<Piece> chunks = packer_.ranges().chunks_of(pieces);
  // Nothing may fail once the packer knows of the range.
  room_for(ranges_, packer_.ranges().ids() + 1);
  Bytes bytes = 0;
  for (const Piece& chunk : chunks) bytes += chunk.bytes;
  ++driver_calls_;
  PENSTOCK_ASSIGN(const Addr address, driver_.reserve(bytes));
  if (Status status = map_chunks(address, chunks); !status.ok()) {
    (void)driver_.unreserve(address, bytes);
    return status;
  }
  try {
    const RangeId id = packer_.stitched(std::move(pieces));
    if (id >= ranges_.size()) ranges_.resize(id + 1);
    ranges_[id] = address;
    return id;
  } catch (...) {  // as above
    (void)driver_.unmap(address, bytes);
    (void)driver_.unreserve(address, bytes);
    throw;
  }
}

Status MemoryPool::drop_range(RangeId id) {
  const Bytes bytes = packer_.ranges()[id].mapped;
  driver_calls_ += 2;
  PENSTOCK_TRY(driver_.unmap(ranges_[id], bytes));
  packer_.drop_range(id);
  return driver_.unreserve(ranges_[id], bytes);
}

Status MemoryPool::trim(Trimmed& trimmed) {
  for (const Packer::Run& run : packer_.free_runs()) {
    for (const RangeId id : packer_.idle_ranges(run)) {
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

}  // namespace penstock::engine
