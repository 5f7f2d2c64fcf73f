// SPDX-License-Identifier: Apache-2.0
#include "policy/baseline/native_model.hpp"

#include <iterator>

namespace penstock::policy::baseline {
namespace {

Bytes segment_bytes(Bytes request) {
  if (request <= kSmallRequest) return kSmallSegment;
  if (request < kMiddleRequest) return kMiddleSegment;
  return align_up(request, kSmallSegment);
}

}  // namespace

std::uint32_t NativeModel::pool_of(bool small, std::uint32_t stream) {
  const auto [entry, added] = numbers_.try_emplace({small, stream}, pools_.size());
  if (added) pools_.push_back({small, {}});
  return entry->second;
}

std::optional<Handle> NativeModel::allocate(Bytes bytes, std::uint32_t stream) {
  const Bytes wanted = round_request(bytes);
  const std::uint32_t number = pool_of(wanted <= kSmallRequest, stream);
  Pool& pool = pools_[number];
  BlockId id = kNoBlock;
  if (const auto found = pool.free.from(wanted); found != pool.free.end()) {
    id = std::get<BlockId>(*found);
    pool.free.erase(blocks_[id], id);
  } else {
    id = add_segment(number, segment_bytes(wanted));
    if (id == kNoBlock) {
      release_free_segments();
      id = add_segment(number, segment_bytes(wanted));
    }
    if (id == kNoBlock) return std::nullopt;
  }
  const Bytes rest = blocks_[id].bytes - wanted;
  if (pool.small ? rest >= kSmallest : rest > kLargestLeftover) {
    const BlockId after = blocks_.split(id, wanted);
    pool.free.insert(blocks_[after], after);
  }
  blocks_[id].state = BlockState::kUsed;
  return id;
}

void NativeModel::free(Handle block) {
  FreeSet& set = pools_[blocks_[block].pool].free;
  blocks_[block].state = BlockState::kFree;
  const BlockId id = join_free_neighbours(
      blocks_, block, [&](BlockId neighbour) { set.erase(blocks_[neighbour], neighbour); });
  set.insert(blocks_[id], id);
}

BlockId NativeModel::add_segment(std::uint32_t pool, Bytes bytes) {
  if (bytes > capacity_ || reserved() > capacity_ - bytes) return kNoBlock;
  reserve(bytes);
  ++calls_.create;
  ++calls_.map;
  ++calls_.set_access;
  Block block;
  block.address = next_;
  block.bytes = bytes;
  block.pool = pool;
  next_ += bytes;
  return blocks_.add(block);
}

void NativeModel::release_free_segments() {
  for (Pool& pool : pools_) {
    for (auto it = pool.free.begin(); it != pool.free.end();) {
      const BlockId id = std::get<BlockId>(*it);
      ++it;
      const Block block = blocks_[id];
      if (block.before != kNoBlock || block.after != kNoBlock) continue;
      pool.free.erase(block, id);
      blocks_.remove(id);
      unreserve(block.bytes);
      ++calls_.unmap;
    }
  }
}

}  // namespace penstock::policy::baseline
