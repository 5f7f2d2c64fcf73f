// SPDX-License-Identifier: Apache-2.0
// What the allocator tells: statistics, the pieces of its memory, its history.
#include <utility>

#include "engine/allocation/allocator.hpp"

namespace penstock::engine {

using policy::packing::Block;
using policy::packing::Extent;
using policy::packing::ExtentId;
using policy::packing::ExtentState;
using policy::packing::kNone;

AllocatorStats Allocator::stats() {
  const std::lock_guard lock(mutex_);
  AllocatorStats stats = stats_;
  for (const Pool& pool : pools_) {
    if (pool.memory == nullptr) continue;
    stats.driver_calls += pool.memory->driver_calls();
    const auto& extents = pool.memory->packer().extents();
    for (ExtentId id = extents.first(); id != kNone; id = extents[id].after) {
      if (extents[id].state == ExtentState::kFree) ++stats.inactive_blocks;
    }
  }
  stats.budget = options_.budget;
  if (const Result<driver::MemoryInfo> memory = driver_.memory_info(); memory.ok()) {
    stats.device_free = memory.value().free;
    stats.device_total = memory.value().total;
  }
  return stats;
}

void Allocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  stats_.each([](Stat& stat) { stat.reset_peak(); });
}

void Allocator::reset_accumulated() {
  const std::lock_guard lock(mutex_);
  stats_.each([](Stat& stat) { stat.reset_accumulated(); });
  stats_.retries = stats_.out_of_memory = 0;
}

std::vector<PieceInfo> Allocator::pieces() {
  const std::lock_guard lock(mutex_);
  std::vector<PieceInfo> pieces;
  for (const Pool& pool : pools_) {
    if (pool.memory != nullptr) list_pieces(pool, pieces);
  }
  return pieces;
}

void Allocator::list_pieces(const Pool& pool, std::vector<PieceInfo>& out) {
  const auto& packer = pool.memory->packer();
  const auto& extents = packer.extents();
  std::size_t first = out.size();  // piece of the present run of chunks
  const auto end_run = [&] {
    if (first == out.size()) return;
    const Addr start = out[first].address;
    const Bytes bytes = out.back().address + out.back().bytes - start;
    for (; first < out.size(); ++first) {
      out[first].segment = start;
      out[first].segment_bytes = bytes;
    }
  };
  for (ExtentId id = extents.first(); id != kNone; id = extents[id].after) {
    const Extent& extent = extents[id];
    if (extent.state == ExtentState::kVacant) {
      end_run();
      continue;
    }
    PieceInfo piece;
    piece.address = pool.memory->base() + extent.start;
    piece.bytes = extent.bytes;
    piece.pool = pool.id;
    if (extent.tag != policy::packing::kAnyStream) {
      piece.stream = static_cast<std::uint64_t>(clock_.stream(extent.tag));
    }
    if (extent.state == ExtentState::kUsed) {
      const Block& block = packer.block(extent.owner);
      piece.block = pool.memory->address_of(extent.owner);
      piece.state =
          awaited_.contains(piece.block) ? PieceState::kAwaitingFree : PieceState::kAllocated;
      if (block.range != kNone) {
        piece.stitched = true;
        for (const ExtentId part : packer.ranges()[block.range].used) {
          if (part == id) break;
          piece.block_offset += extents[part].bytes;
        }
      }
      if (piece.block_offset == 0) piece.requested = block.requested;
    }
    out.push_back(piece);
  }
  end_run();
}

std::uint64_t Allocator::context_of(AllocationEvent event) {
  if (!history_on_.load(std::memory_order_relaxed)) return 0;
  ContextCallback context;
  {
    const std::lock_guard lock(mutex_);
    context = context_;
  }
  return context ? context(event) : 0;
}

void Allocator::note(AllocationEvent event, Addr address, Bytes bytes, Bytes requested,
                     driver::Stream stream, PoolId pool, std::uint64_t context) {
  if (!history_.on()) return;
  AllocationRecord record;
  record.event = event;
  record.address = address;
  record.bytes = bytes;
  record.requested = requested;
  record.stream = static_cast<std::uint64_t>(stream);
  record.pool_high = pool.high;
  record.pool_low = pool.low;
  record.context = context;
  history_.add(record);
}

void Allocator::record_history(std::uint64_t capacity, ContextCallback context) {
  const std::lock_guard lock(mutex_);
  context_ = std::move(context);
  history_.start(capacity);
  history_on_.store(capacity > 0, std::memory_order_relaxed);
}

std::vector<AllocationRecord> Allocator::history() {
  const std::lock_guard lock(mutex_);
  return history_.events();
}

}  // namespace penstock::engine
