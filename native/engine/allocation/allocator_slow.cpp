// SPDX-License-Identifier: Apache-2.0
// The slow paths of the allocator: growth, stitching, and what is tried when memory is short.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/allocation/allocator.hpp"

namespace penstock::engine {

Result<packing::BlockId> Allocator::place_slowly(Pool& pool, packing::Request request) {
  packing::Packer& packer = pool.memory->packer();
  const Bytes size = request.bytes;
  const bool apart = packer.keeps_apart(request);
  if (!apart) PENSTOCK_TRY(take_over(pool, request.tag, false));
  bool device_full = false;
  for (packing::Recovery step = packing::Recovery::kStart;;) {
    request.growable = device_full || reserved_ >= options_.budget
                           ? 0
                           : (options_.budget - reserved_) / options_.packing.smallest_chunk;
    packing::Decision decision = packer.place(request);
    switch (decision.kind) {
      case packing::Decision::Kind::kPlaced:
        return decision.block;
      case packing::Decision::Kind::kStitch: {
        PENSTOCK_ASSIGN(const packing::BlockId block,
                        stitch(pool, request, std::move(decision.pieces)));
        if (block != packing::kNone) return block;
        break;
      }
      case packing::Decision::Kind::kGrow: {
        Status status = grow(pool, decision, request.tag);
        if (status.code() == Code::kOutOfMemory) {
          device_full = true;  // others use it too
        } else {
          PENSTOCK_TRY(status);
        }
        break;
      }
      case packing::Decision::Kind::kFull: {
        const Bytes before = reserved_;
        step = packing::next_step(step, shortage(pool, request.tag, apart));
        if (step == packing::Recovery::kGiveUp) return out_of_memory(size);
        PENSTOCK_TRY(recover(pool, request, step));
        if (reserved_ < before) device_full = false;
        break;
      }
    }
  }
}

// What other streams freed, once their work is over, or behind it.  Private pools keep their
// streams apart: in a capture the order of streams is the graph's.
Status Allocator::take_over(Pool& pool, std::uint16_t tag, bool wait) {
  if (!takes_over(pool)) return {};
  packing::Packer& packer = pool.memory->packer();
  for (std::uint16_t other = 1; other <= clock_.last_tag(); ++other) {
    if (other == tag || packer.extents().free_bytes(other) == 0) continue;
    Result<std::uint32_t> epoch = wait ? clock_.wait(tag, other) : clock_.completed(other);
    PENSTOCK_TRY(epoch.status());
    std::uint32_t own = 0;
    if (wait) {
      ++stats_.stream_waits;
      // A third stream must wait for this one, which now stands behind the other's work.
      own = clock_.freed(tag, packer.extents().free_bytes(other), false);
    }
    packer.hand_over(other, tag, epoch.value(), own);
  }
  return {};
}

Result<packing::BlockId> Allocator::stitch(Pool& pool, packing::Request& request,
                                           std::vector<packing::Piece> pieces) {
  Result<packing::RangeId> range = pool.memory->stitch(std::move(pieces));
  if (!range.ok()) {
    // Addresses or page tables ran out, not chunks: the same again without stitching.
    request.may_stitch = false;
    return static_cast<packing::BlockId>(packing::kNone);
  }
  const Bytes bytes = pool.memory->packer().ranges()[range.value()].mapped;
  ++stats_.stitches;
  stats_.stitched_ranges.add(1);
  stats_.stitched_range_bytes.add(bytes);
  note(AllocationEvent::kStitch, pool.memory->range_address(range.value()), bytes, 0,
       clock_.stream(request.tag), pool.id);
  const packing::BlockId block = pool.memory->packer().place_in(request, range.value());
  if (pool.memory->packer().too_many_ranges() && !capturing()) PENSTOCK_TRY(drop_old_ranges(pool));
  return block;
}

Status Allocator::grow(Pool& pool, const packing::Decision& decision, std::uint16_t tag) {
  PENSTOCK_TRY(pool.memory->grow(decision, tag));
  const Bytes slot = options_.packing.smallest_chunk;
  const Bytes bytes = decision.slots() * slot;
  reserved_ += bytes;
  stats_.reserved_bytes.add(bytes, StatBySize::kLarge);
  stats_.chunks.add(decision.chunks.size());
  note(AllocationEvent::kSegmentMap, pool.memory->base() + decision.first_slot * slot, bytes, 0,
       clock_.stream(tag), pool.id);
  return {};
}

// An eighth of the ranges at once, the least recently used, since all streams are waited for.
Status Allocator::drop_old_ranges(Pool& pool) {
  PENSTOCK_ASSIGN(const bool idle, clock_.synchronize());
  if (!idle) return {};
  const std::size_t target = pool.memory->packer().ranges().size() * 7 / 8;
  while (pool.memory->packer().ranges().size() > target) {
    const packing::RangeId range = pool.memory->packer().oldest_range();
    if (range == packing::kNone) break;
    const Bytes bytes = pool.memory->packer().ranges()[range].mapped;
    note(AllocationEvent::kUnstitch, pool.memory->range_address(range), bytes, 0, {}, pool.id);
    PENSTOCK_TRY(pool.memory->drop_range(range));
    stats_.stitched_ranges.take(1);
    stats_.stitched_range_bytes.take(bytes);
  }
  return {};
}

packing::Shortage Allocator::shortage(const Pool& pool, std::uint16_t tag, bool apart) {
  packing::Shortage there{.apart = apart, .shared = takes_over(pool)};
  for (std::uint16_t other = 1; other <= clock_.last_tag() && !there.freed; ++other) {
    there.freed = other != tag && pool.memory->packer().extents().free_bytes(other) > 0;
  }
  there.awaited = !capturing() && !(pending_.empty() && deferred_.empty());
  return there;
}

Status Allocator::recover(Pool& pool, packing::Request& request, packing::Recovery step) {
  switch (step) {
    case packing::Recovery::kLetIn:
      return take_over(pool, request.tag, false);
    case packing::Recovery::kJoin:
      request.desperate = true;
      return {};
    case packing::Recovery::kAwait:
      PENSTOCK_TRY(collect(true));
      [[fallthrough]];
    case packing::Recovery::kBehind:
      return take_over(pool, request.tag, true);
    case packing::Recovery::kGiveBack:
      ++stats_.retries;
      request.released = true;
      return capturing() ? Status{} : trim();
    default:
      return {};
  }
}

// Gives back all free chunks.  Waits for all streams: cuMemUnmap does not; where it cannot, since
// one captures, they stay.
Status Allocator::trim() {
  PENSTOCK_ASSIGN(const bool idle, clock_.synchronize());
  if (!idle) return {};
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    // A graph that is replayed writes to memory that was free when its capture ended.
    if (pool.memory == nullptr || (!pool.common && pool.users > 0)) continue;
    // Nothing is under way: free neighbours of different streams become one.
    for (std::uint16_t tag = 2; tag <= clock_.last_tag(); ++tag) {
      pool.memory->packer().hand_over(tag, 1, std::numeric_limits<std::uint32_t>::max());
    }
    MemoryPool::Trimmed trimmed;
    const std::uint64_t chunks = pool.memory->chunks();
    const Status status = guarded([&] { return pool.memory->trim(trimmed); });
    stats_.chunks.take(chunks - pool.memory->chunks());
    tell_trimmed(pool, trimmed);
    PENSTOCK_TRY(status);
    if (!pool.common && pool.users == 0 && pool.memory->packer().live_blocks() == 0) {
      pool.memory.reset();
    }
  }
  return {};
}

void Allocator::tell_trimmed(const Pool& pool, const MemoryPool::Trimmed& trimmed) {
  for (const auto& [address, bytes] : trimmed.ranges) {
    stats_.stitched_ranges.take(1);
    stats_.stitched_range_bytes.take(bytes);
    note(AllocationEvent::kUnstitch, address, bytes, 0, {}, pool.id);
  }
  for (const auto& [address, bytes] : trimmed.runs) {
    reserved_ -= bytes;
    stats_.reserved_bytes.take(bytes, StatBySize::kLarge);
    note(AllocationEvent::kSegmentUnmap, address, bytes, 0, {}, pool.id);
  }
}

Status Allocator::out_of_memory(Bytes size) {
  ++stats_.out_of_memory;
  const Result<driver::MemoryInfo> memory = driver_.memory_info();
  const Bytes device_free = memory.ok() ? memory.value().free : 0;
  const Bytes held = reserved_;
  const auto used = static_cast<Bytes>(stats_.active_bytes.of[0].current);
  note(AllocationEvent::kOutOfMemory, device_free, size, size, {}, {});
  return Status(Code::kOutOfMemory, "Tried to allocate ", size_text(size), ". GPU ",
                driver_.info().ordinal, " has a total capacity of ",
                size_text(driver_.info().total), ", of which ", size_text(device_free),
                " is free. Penstock holds ", size_text(held), " of its budget of ",
                size_text(options_.budget), "; ", size_text(used), " of that is in use, ",
                size_text(held - std::min(used, held)),
                " is free but does not hold the request. Use a smaller batch or gradient "
                "checkpointing, or a larger gpu_memory");
}

}  // namespace penstock::engine
