// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_pool.hpp"

#include <utility>

namespace penstock::engine {

using policy::packing::BlockId;
using policy::packing::kNone;
using policy::packing::Packer;
using policy::packing::Piece;
using policy::packing::RangeId;
using policy::packing::StitchedRange;
using policy::packing::StreamTag;

Result<std::unique_ptr<MemoryPool>> MemoryPool::create(driver::Driver& driver,
                                                       const policy::packing::Options& options,
                                                       std::uint64_t chunks) {
  std::unique_ptr<MemoryPool> pool(new MemoryPool(driver, options, chunks));
  PENSTOCK_ASSIGN(pool->base_, driver.reserve(chunks * options.chunk_bytes));
  return pool;
}

MemoryPool::~MemoryPool() {
  if (base_ == 0) return;
  const Bytes chunk = options_.chunk_bytes;
  for (RangeId id = 0; id < packer_.ranges().ids(); ++id) {
    const StitchedRange& range = packer_.ranges()[id];
    if (range.state == StitchedRange::State::kDropped) continue;
    (void)driver_.unmap(ranges_[id], range.chunks * chunk);
    (void)driver_.unreserve(ranges_[id], range.chunks * chunk);
  }
  std::uint64_t run = 0;
  for (std::uint64_t slot = 0; slot <= handles_.size(); ++slot) {
    if (slot < handles_.size() && handles_[slot] != driver::Chunk{}) {
      ++run;
      continue;
    }
    if (run > 0) (void)driver_.unmap(base_ + (slot - run) * chunk, run * chunk);
    run = 0;
  }
  for (const driver::Chunk handle : handles_) {
    if (handle != driver::Chunk{}) (void)driver_.release_chunk(handle);
  }
  (void)driver_.unreserve(base_, handles_.size() * chunk);
}

Addr MemoryPool::address_of(BlockId id) const {
  const auto& block = packer_.block(id);
  if (block.range == kNone) return base_ + block.offset;
  return ranges_[block.range] + block.offset % options_.chunk_bytes;
}

Status MemoryPool::map_chunks(Addr address, const std::vector<std::uint64_t>& chunks) {
  const Bytes bytes = options_.chunk_bytes;
  std::uint64_t mapped = 0;
  Status status;
  for (; mapped < chunks.size() && status.ok(); ++mapped) {
    ++driver_calls_;
    status = driver_.map(address + mapped * bytes, bytes, handles_[chunks[mapped]]);
    if (!status.ok()) break;
  }
  if (status.ok()) {
    ++driver_calls_;
    status = driver_.set_access(address, chunks.size() * bytes);
  }
  if (!status.ok() && mapped > 0) (void)driver_.unmap(address, mapped * bytes);
  return status;
}

Status MemoryPool::grow(std::uint64_t first_chunk, std::uint64_t count, StreamTag tag) {
  const Bytes bytes = options_.chunk_bytes;
  std::vector<std::uint64_t> made;
  Status status;
  for (std::uint64_t slot = first_chunk; slot < first_chunk + count; ++slot) {
    ++driver_calls_;
    Result<driver::Chunk> chunk = driver_.create_chunk(bytes, driver::Place::kDevice);
    if (!chunk.ok()) {
      status = chunk.status();
      break;
    }
    handles_[slot] = chunk.value();
    made.push_back(slot);
  }
  if (status.ok()) status = map_chunks(base_ + first_chunk * bytes, made);
  if (!status.ok()) {
    for (const std::uint64_t slot : made) {
      (void)driver_.release_chunk(std::exchange(handles_[slot], driver::Chunk{}));
    }
    return status;
  }
  chunks_ += count;
  packer_.grown(first_chunk, count, tag);
  return {};
}

Result<RangeId> MemoryPool::stitch(std::vector<Piece> pieces) {
  const Bytes bytes = options_.chunk_bytes;
  std::vector<std::uint64_t> chunks;
  for (const Piece& piece : pieces) {
    const std::uint64_t last = (piece.start + piece.bytes - 1) / bytes;
    for (std::uint64_t slot = piece.start / bytes; slot <= last; ++slot) chunks.push_back(slot);
  }
  ++driver_calls_;
  PENSTOCK_ASSIGN(const Addr address, driver_.reserve(chunks.size() * bytes));
  if (Status status = map_chunks(address, chunks); !status.ok()) {
    (void)driver_.unreserve(address, chunks.size() * bytes);
    return status;
  }
  const RangeId id = packer_.stitched(std::move(pieces));
  if (id >= ranges_.size()) ranges_.resize(id + 1);
  ranges_[id] = address;
  return id;
}

Status MemoryPool::drop_range(RangeId id) {
  const Bytes bytes = packer_.ranges()[id].chunks * options_.chunk_bytes;
  driver_calls_ += 2;
  PENSTOCK_TRY(driver_.unmap(ranges_[id], bytes));
  packer_.drop_range(id);
  return driver_.unreserve(ranges_[id], bytes);
}

Result<MemoryPool::Trimmed> MemoryPool::trim() {
  Trimmed trimmed;
  for (const Packer::Run& run : packer_.free_runs()) {
    for (const RangeId id : packer_.idle_ranges(run)) {
      PENSTOCK_TRY(drop_range(id));
      ++trimmed.ranges;
    }
    const Bytes bytes = options_.chunk_bytes;
    ++driver_calls_;
    PENSTOCK_TRY(driver_.unmap(base_ + run.first_chunk * bytes, run.count * bytes));
    packer_.vacate(run);
    for (std::uint64_t slot = run.first_chunk; slot < run.first_chunk + run.count; ++slot) {
      ++driver_calls_;
      (void)driver_.release_chunk(std::exchange(handles_[slot], driver::Chunk{}));
    }
    chunks_ -= run.count;
    trimmed.chunks += run.count;
  }
  return trimmed;
}

}  // namespace penstock::engine
