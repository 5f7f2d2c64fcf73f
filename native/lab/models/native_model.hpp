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

#include "lab/models/model.hpp"

namespace penstock::policy::baseline {

class NativeModel final : public Model {
 public:
  using Model::Model;

 private:
  BlockId place(Bytes wanted, std::uint32_t stream) override {
    const std::uint32_t number = pool_of(wanted <= kSmallRequest, stream);
    Pool& pool = pools_[number];
    BlockId id = kNoBlock;
    if (const auto found = pool.free.lower_bound({wanted, 0, 0}); found != pool.free.end()) {
      id = std::get<BlockId>(*found);
      pool.free.erase(found);
    } else {
      id = add_segment(number, segment_bytes(wanted));
      if (id == kNoBlock) {
        release_free_segments();
        id = add_segment(number, segment_bytes(wanted));
      }
      if (id == kNoBlock) return kNoBlock;
    }
    const Bytes rest = blocks_[id].bytes - wanted;
    if (pool.small ? rest >= kSmallest : rest > kLargestLeftover) {
      pool.free.insert(blocks_.entry(blocks_.split(id, wanted)));
    }
    return id;
  }

  static Bytes segment_bytes(Bytes request) {
    if (request <= kSmallRequest) return kSmallSegment;
    if (request < kMiddleRequest) return kMiddleSegment;
    return align_up(request, kSmallSegment);
  }

  // Free, in no free set; or kNoBlock.
  BlockId add_segment(std::uint32_t pool, Bytes bytes) {
    if (!reserve(bytes, 1)) return kNoBlock;
    Block block;
    block.address = next_;
    block.bytes = bytes;
    block.pool = pool;
    next_ += bytes;
    return blocks_.add(block);
  }
  void release_free_segments() {
    for (Pool& pool : pools_) {
      for (auto it = pool.free.begin(); it != pool.free.end();) {
        const BlockId id = std::get<BlockId>(*it);
        ++it;
        const Block block = blocks_[id];
        if (block.before != kNoBlock || block.after != kNoBlock) continue;
        pool.free.erase(blocks_.entry(id));
        blocks_.remove(id);
        unreserve(block.bytes, 1);
      }
    }
  }
};

}  // namespace penstock::policy::baseline
