// SPDX-License-Identifier: Apache-2.0
// A model of PyTorch's default allocator ("native" without expandable segments): segments from
// cudaMalloc that are cut into blocks and never joined with one another.
//
// A request is rounded to 512 bytes and served by the smallest free block of its stream and pool
// (small: up to 1 MiB).  Of a larger block the rest is split off if it is worth it: from 512 bytes
// on in the small pool, above 1 MiB in the large one.  Otherwise a segment is added: 2 MiB for
// small requests, 20 MiB below 10 MiB, else the request rounded to 2 MiB.  Where the capacity does
// not suffice, all segments without a used block are given back first.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "policy/baseline/block_table.hpp"
#include "policy/baseline/model.hpp"

namespace penstock::policy::baseline {

class NativeModel final : public Model {
 public:
  explicit NativeModel(Bytes capacity) : capacity_(capacity) {}

  std::optional<Handle> allocate(Bytes bytes, std::uint32_t stream) override;
  void free(Handle block) override;

 private:
  struct Pool {
    bool small = false;
    FreeSet free;
  };

  std::uint32_t pool_of(bool small, std::uint32_t stream);
  BlockId add_segment(std::uint32_t pool, Bytes bytes);  // free, in no free set; or kNoBlock
  void release_free_segments();

  const Bytes capacity_;
  BlockTable blocks_;
  std::vector<Pool> pools_;
  std::map<std::pair<bool, std::uint32_t>, std::uint32_t> numbers_;  // of pools
  Addr next_ = kMiddleSegment;                                       // of the next segment
};

}  // namespace penstock::policy::baseline
