// SPDX-License-Identifier: Apache-2.0
#include "policy/baseline/block_table.hpp"

namespace penstock::policy::baseline {

BlockId BlockTable::add(const Block& block) {
  if (spare_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = spare_.back();
  spare_.pop_back();
  blocks_[id] = block;
  return id;
}

void BlockTable::remove(BlockId id) {
  const Block& block = blocks_[id];
  if (block.before != kNoBlock) blocks_[block.before].after = block.after;
  if (block.after != kNoBlock) blocks_[block.after].before = block.before;
  spare_.push_back(id);
}

BlockId BlockTable::split(BlockId id, Bytes bytes) {
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

void BlockTable::absorb_next(BlockId id) {
  const BlockId next = blocks_[id].after;
  blocks_[id].bytes += blocks_[next].bytes;
  remove(next);
}

}  // namespace penstock::policy::baseline
