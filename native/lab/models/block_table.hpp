// SPDX-License-Identifier: Apache-2.0
// The blocks that segments are cut into, linked by address, and those of a pool that are free,
// ordered by size and then address.  A segment is a chain of blocks without a gap.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "base/units.hpp"

namespace penstock::policy::baseline {

using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = ~BlockId{0};

enum class BlockState : std::uint8_t { kFree, kUsed, kUnmapped };

struct Block {
  Addr address = 0;
  Bytes bytes = 0;
  BlockId before = kNoBlock;
  BlockId after = kNoBlock;
  std::uint32_t pool = 0;
  BlockState state = BlockState::kFree;
};

// Of a free block; sets of them find the smallest of at least some bytes by {bytes, 0, 0}.
using FreeEntry = std::tuple<Bytes, Addr, BlockId>;

class BlockTable {
 public:
  [[nodiscard]] FreeEntry entry(BlockId id) const {
    return {blocks_[id].bytes, blocks_[id].address, id};
  }
  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }

  BlockId add(const Block& block) {
    if (spare_.empty()) {
      blocks_.push_back(block);
      return static_cast<BlockId>(blocks_.size() - 1);
    }
    const BlockId id = spare_.back();
    spare_.pop_back();
    blocks_[id] = block;
    return id;
  }
  // The chain is closed behind it.
  void remove(BlockId id) {
    const Block& block = blocks_[id];
    if (block.before != kNoBlock) blocks_[block.before].after = block.after;
    if (block.after != kNoBlock) blocks_[block.after].before = block.before;
    spare_.push_back(id);
  }
  // Cuts a block after `bytes`; returns the rest, which is in the state of the first part.
  BlockId split(BlockId id, Bytes bytes) {
    Block rest = blocks_[id];
    rest.address += bytes;
    rest.bytes -= bytes;
    rest.before = id;
    const BlockId added = add(rest);
    blocks_[id].bytes = bytes;
    blocks_[id].after = added;
    if (rest.after != kNoBlock) blocks_[rest.after].before = added;
    return added;
  }
  // Joins a block with the next one in its chain, which goes.
  void absorb_next(BlockId id) {
    const BlockId next = blocks_[id].after;
    blocks_[id].bytes += blocks_[next].bytes;
    remove(next);
  }
  [[nodiscard]] bool is(BlockId id, BlockState state) const {
    return id != kNoBlock && blocks_[id].state == state;
  }

 private:
  std::vector<Block> blocks_;
  std::vector<BlockId> spare_;
};

}  // namespace penstock::policy::baseline
