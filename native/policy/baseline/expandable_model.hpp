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

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "policy/baseline/block_table.hpp"
#include "policy/baseline/model.hpp"

namespace penstock::policy::baseline {

class ExpandableModel final : public Model {
 public:
  explicit ExpandableModel(Bytes capacity) : capacity_(capacity) {}

  std::optional<Handle> allocate(Bytes bytes, std::uint32_t stream) override;
  void free(Handle block) override;

 private:
  struct Pool {
    Bytes page = 0;
    FreeSet free;
    std::set<std::pair<Addr, BlockId>> unmapped;
  };

  std::uint32_t pool_of(bool small, std::uint32_t stream);
  [[nodiscard]] Bytes could_become(BlockId id) const;
  [[nodiscard]] BlockId best_fit(const Pool& pool, Bytes bytes) const;
  // Where a run of free and unmapped blocks of at least `bytes` begins; a new range if nowhere.
  BlockId place_for(std::uint32_t pool, Bytes bytes);
  // A free block of at least `bytes`, mapped at the place for it, or kNoBlock.
  BlockId map_room(std::uint32_t pool, Bytes bytes);
  // Maps the beginning of an unmapped block and joins it with free neighbours; or kNoBlock.
  BlockId map_front(Pool& pool, BlockId id, Bytes bytes);
  void unmap_free_pages(Pool& pool);
  // The whole pages inside a free block, which is in no free set, become unmapped.
  void unmap_pages(Pool& pool, BlockId id, Addr begin, Addr end);
  void insert_free(Pool& pool, BlockId id) { pool.free.insert(blocks_[id], id); }

  const Bytes capacity_;
  BlockTable blocks_;
  std::vector<Pool> pools_;
  std::map<std::pair<bool, std::uint32_t>, std::uint32_t> numbers_;  // of pools
  Addr next_ = kMiddleSegment;                                       // of the next range
};

}  // namespace penstock::policy::baseline
