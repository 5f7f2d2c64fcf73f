// SPDX-License-Identifier: Apache-2.0
// A model of PyTorch's allocator with expandable_segments:True: one range of addresses for each
// stream and pool, mapped page by page from its beginning (small pool: pages of 2 MiB; else 20
// MiB).
//
// A request takes the smallest free block of its range; a block at the edge of unmapped addresses
// counts as large as it could become, so that it is used last.  Where none fits, the first place in
// the range at which free and unmapped addresses suffice is mapped as far as needed.  The rest of a
// block is always split off.  Where the capacity does not suffice, the whole pages of all free
// blocks are unmapped first, which leaves holes that are mapped again later.
#pragma once

#include <algorithm>
#include <iterator>

#include "lab/models/model.hpp"

namespace penstock::policy::baseline {

class ExpandableModel final : public Model {
 public:
  using Model::Model;

 private:
  BlockId place(Bytes wanted, std::uint32_t stream) override {
    const std::uint32_t number = pool_of(wanted <= kSmallRequest, stream);
    BlockId id = best_fit(pools_[number], wanted);
    if (id == kNoBlock) id = map_room(number, wanted);
    if (id == kNoBlock) {
      for (Pool& pool : pools_) unmap_free_pages(pool);
      id = map_room(number, wanted);
    }
    if (id == kNoBlock) return kNoBlock;
    Pool& pool = pools_[number];
    pool.free.erase(blocks_.entry(id));
    if (blocks_[id].bytes > wanted) insert_free(pool, blocks_.split(id, wanted));
    return id;
  }

  static Bytes page_of(const Pool& pool) { return pool.small ? kSmallSegment : kMiddleSegment; }

  [[nodiscard]] Bytes could_become(BlockId id) const {
    const Block& block = blocks_[id];
    const bool edge = blocks_.is(block.after, BlockState::kUnmapped);
    return block.bytes + (edge ? blocks_[block.after].bytes : 0);
  }

  [[nodiscard]] BlockId best_fit(const Pool& pool, Bytes bytes) const {
    auto best = pool.free.lower_bound({bytes, 0, 0});
    if (best == pool.free.end()) return kNoBlock;
    for (auto next = std::next(best); next != pool.free.end(); ++next) {
      if (could_become(std::get<BlockId>(*next)) >= could_become(std::get<BlockId>(*best))) break;
      best = next;
    }
    return std::get<BlockId>(*best);
  }

  // Where a run of free and unmapped blocks of at least `bytes` begins; a new range if nowhere.
  BlockId place_for(std::uint32_t number, Bytes bytes) {
    Pool& pool = pools_[number];
    for (const auto& [address, unmapped] : pool.unmapped) {
      const BlockId before = blocks_[unmapped].before;
      const BlockId first = blocks_.is(before, BlockState::kFree) ? before : unmapped;
      Bytes room = 0;
      for (BlockId id = first; id != kNoBlock && room < bytes; id = blocks_[id].after) {
        if (blocks_[id].state == BlockState::kUsed) break;
        room += blocks_[id].bytes;
      }
      if (room >= bytes) return first;
    }
    // A range has an eighth more addresses than the device has memory.
    Block range;
    range.address = next_;
    range.bytes = align_up(std::max(bytes, capacity_ + capacity_ / 8), page_of(pool));
    range.pool = number;
    range.state = BlockState::kUnmapped;
    next_ = align_up(next_ + range.bytes, kMiddleSegment) + kMiddleSegment;
    const BlockId id = blocks_.add(range);
    pool.unmapped.emplace(range.address, id);
    return id;
  }

  // A free block of at least `bytes`, mapped at the place for it, or kNoBlock.
  BlockId map_room(std::uint32_t number, Bytes bytes) {
    if (bytes > capacity_) return kNoBlock;
    BlockId id = place_for(number, bytes);
    Pool& pool = pools_[number];
    if (blocks_[id].state == BlockState::kUnmapped) {
      id = map_front(pool, id, std::min(blocks_[id].bytes, bytes));
    }
    while (id != kNoBlock && blocks_[id].bytes < bytes) {
      const BlockId next = blocks_[id].after;
      id = map_front(pool, next, std::min(blocks_[next].bytes, bytes - blocks_[id].bytes));
    }
    return id;
  }

  // Maps the beginning of an unmapped block and joins it with free neighbours; or kNoBlock.
  BlockId map_front(Pool& pool, BlockId id, Bytes bytes) {
    const Bytes mapped = std::min(align_up(bytes, page_of(pool)), blocks_[id].bytes);
    if (!reserve(mapped, static_cast<std::int64_t>(mapped / page_of(pool)))) return kNoBlock;
    pool.unmapped.erase({blocks_[id].address, id});
    if (mapped < blocks_[id].bytes) {
      const BlockId rest = blocks_.split(id, mapped);
      pool.unmapped.emplace(blocks_[rest].address, rest);
    }
    blocks_[id].state = BlockState::kFree;
    return pool.take_back(blocks_, id);
  }

  void unmap_free_pages(Pool& pool) {
    std::vector<BlockId> all;
    for (const auto& entry : pool.free) all.push_back(std::get<BlockId>(entry));
    for (const BlockId id : all) {
      const Block block = blocks_[id];
      const Addr begin = align_up(block.address, page_of(pool));
      const Addr end = align_down(block.address + block.bytes, page_of(pool));
      if (begin >= end) continue;
      pool.free.erase(blocks_.entry(id));
      unmap_pages(pool, id, begin, end);
    }
  }

  // The whole pages inside a free block, which is in no free set, become unmapped.
  void unmap_pages(Pool& pool, BlockId id, Addr begin, Addr end) {
    if (end < blocks_[id].address + blocks_[id].bytes) {
      insert_free(pool, blocks_.split(id, end - blocks_[id].address));
    }
    if (begin > blocks_[id].address) {
      const BlockId inner = blocks_.split(id, begin - blocks_[id].address);
      insert_free(pool, id);
      id = inner;
    }
    blocks_[id].state = BlockState::kUnmapped;
    unreserve(end - begin, static_cast<std::int64_t>((end - begin) / page_of(pool)));
    if (const BlockId after = blocks_[id].after; blocks_.is(after, BlockState::kUnmapped)) {
      pool.unmapped.erase({blocks_[after].address, after});
      blocks_.absorb_next(id);
    }
    if (const BlockId before = blocks_[id].before; blocks_.is(before, BlockState::kUnmapped)) {
      blocks_.absorb_next(before);
      return;  // it is in the list already, by its address
    }
    pool.unmapped.emplace(blocks_[id].address, id);
  }

  void insert_free(Pool& pool, BlockId id) { pool.free.insert(blocks_.entry(id)); }
};

}  // namespace penstock::policy::baseline
