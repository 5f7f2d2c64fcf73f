// SPDX-License-Identifier: Apache-2.0
// What the allocator tells: statistics, the pieces of its memory, its history.
#include <utility>

#include "engine/allocation/allocator.hpp"

namespace penstock::engine {

AllocatorStats Allocator::stats() {
  const std::lock_guard lock(mutex_);
  AllocatorStats stats = stats_;
  for (const Pool& pool : pools_) {
    if (pool.memory == nullptr) continue;
    stats.driver_calls += pool.memory->driver_calls();
    const auto& extents = pool.memory->packer().extents();
    for (packing::ExtentId id = extents.first(); id != packing::kNone; id = extents[id].after) {
      if (extents[id].state == packing::ExtentState::kFree) ++stats.inactive_blocks;
    }
  }
  stats.budget = options_.budget;
  if (const Result<driver::MemoryInfo> memory = driver_.memory_info(); memory.ok()) {
    stats.device_free = memory.value().free;
    stats.device_total = memory.value().total;
  }
  return stats;
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
  for (packing::ExtentId id = extents.first(); id != packing::kNone; id = extents[id].after) {
    const packing::Extent& extent = extents[id];
    if (extent.state == packing::ExtentState::kVacant) {
      end_run();
      continue;
    }
    PieceInfo piece;
    piece.address = pool.memory->base() + extent.start;
    piece.bytes = extent.bytes;
    piece.pool = pool.id;
    if (extent.tag != packing::kAnyStream) {
      piece.stream = static_cast<std::uint64_t>(clock_.stream(extent.tag));
    }
    if (extent.state == packing::ExtentState::kUsed) {
      const packing::Block& block = packer.block(extent.owner);
      piece.block = pool.memory->address_of(extent.owner);
      piece.state =
          awaited_.contains(piece.block) ? PieceState::kAwaitingFree : PieceState::kAllocated;
      if (block.range != packing::kNone) {
        piece.stitched = true;
        for (const packing::ExtentId part : packer.ranges()[block.range].used) {
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
  history_.add({.address = address,
                .bytes = bytes,
                .requested = requested,
                .stream = static_cast<std::uint64_t>(stream),
                .pool_high = pool.high,
                .pool_low = pool.low,
                .context = context,
                .event = event});
}

void Allocator::record_history(std::uint64_t capacity, ContextCallback context) {
  const std::lock_guard lock(mutex_);
  context_ = std::move(context);
  history_.start(capacity);
  history_on_.store(capacity > 0, std::memory_order_relaxed);
}

}  // namespace penstock::engine
