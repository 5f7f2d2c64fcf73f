// SPDX-License-Identifier: Apache-2.0
// What the models of PyTorch's own allocators have in common: how a replay drives them, what they
// ask of a device, and the sizes that PyTorch 2.11 documents and its statistics show.
//
// The models say how much memory PyTorch would reserve for a sequence of calls.  They are written
// from its behaviour and checked against runs of the real thing (docs/replay.md has the errors).
// Pure: no driver, no locks, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lab/models/block_table.hpp"
#include "lab/replay_subject.hpp"

namespace penstock::policy::baseline {

inline constexpr Bytes kSmallest = 512;             // sizes are multiples of it
inline constexpr Bytes kSmallRequest = kMiB;        // up to here: the small pool
inline constexpr Bytes kSmallSegment = 2 * kMiB;    // also what larger segments are multiples of
inline constexpr Bytes kMiddleRequest = 10 * kMiB;  // below: segments of a fixed size
inline constexpr Bytes kMiddleSegment = 20 * kMiB;
inline constexpr Bytes kLargestLeftover = kMiB;  // what is not worth splitting off

constexpr Bytes round_request(Bytes bytes) {
  return bytes < kSmallest ? kSmallest : align_up(bytes, kSmallest);
}

// A pool of each stream: small requests apart from others.
struct Pool {
  bool small = false;
  std::set<FreeEntry> free;
  std::set<std::pair<Addr, BlockId>> unmapped = {};  // of a model that unmaps

  // A free block that is in no free set, joined with its free neighbours.
  BlockId take_back(BlockTable& blocks, BlockId id) {
    if (const BlockId after = blocks[id].after; blocks.is(after, BlockState::kFree)) {
      free.erase(blocks.entry(after));
      blocks.absorb_next(id);
    }
    if (const BlockId before = blocks[id].before; blocks.is(before, BlockState::kFree)) {
      free.erase(blocks.entry(before));
      blocks.absorb_next(before);
      id = before;
    }
    free.insert(blocks.entry(id));
    return id;
  }
};

class Model : public engine::ReplaySubject {
 public:
  explicit Model(Bytes capacity, const driver::DriverCosts& costs = {})
      : capacity_(capacity), costs_(costs) {}

  // kOutOfMemory after cached memory was given back.
  Status allocate(Bytes bytes, std::uint32_t stream, std::uint64_t& handle) final {
    const BlockId id = place(round_request(bytes), stream);
    if (id == kNoBlock) {
      return Status(Code::kOutOfMemory, bytes, " bytes do not fit: ", reserved_, " of ", capacity_,
                    " are reserved");
    }
    blocks_[id].state = BlockState::kUsed;
    handle = id;
    return {};
  }
  Status free(std::uint64_t handle) final {
    const auto id = static_cast<BlockId>(handle);
    blocks_[id].state = BlockState::kFree;
    pools_[blocks_[id].pool].take_back(blocks_, id);
    return {};
  }

  [[nodiscard]] Bytes reserved() const final { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const final { return peak_; }
  [[nodiscard]] std::int64_t map_calls() const final { return calls_.map; }
  [[nodiscard]] double modelled_us() const final { return driver::cost_us(calls_, costs_); }
  [[nodiscard]] const driver::DriverCalls& calls() const { return calls_; }

 protected:
  // A block of `bytes`, in no free set; or kNoBlock.
  virtual BlockId place(Bytes bytes, std::uint32_t stream) = 0;
  // False, and nothing is, beyond the capacity.  `chunks`: how many are created, mapped and made
  // accessible for it.
  bool reserve(Bytes bytes, std::int64_t chunks) {
    if (bytes > capacity_ || reserved_ > capacity_ - bytes) return false;
    reserved_ += bytes;
    if (reserved_ > peak_) peak_ = reserved_;
    calls_.create += chunks;
    calls_.map += chunks;
    calls_.accessed += chunks;
    return true;
  }
  void unreserve(Bytes bytes, std::int64_t chunks) {
    reserved_ -= bytes;
    calls_.unmapped += chunks;
  }
  std::uint32_t pool_of(bool small, std::uint32_t stream) {
    const auto [entry, added] = numbers_.try_emplace({small, stream}, pools_.size());
    if (added) pools_.push_back({small, {}});
    return entry->second;
  }

  const Bytes capacity_;
  const driver::DriverCosts costs_;
  BlockTable blocks_;
  std::vector<Pool> pools_;
  Addr next_ = kMiddleSegment;  // where the next segment, or range, begins

 private:
  std::map<std::pair<bool, std::uint32_t>, std::uint32_t> numbers_;  // of pools
  Bytes reserved_ = 0;
  Bytes peak_ = 0;
  // A cudaMalloc counts as one chunk that is created, mapped and made accessible, a cudaFree as an
  // unmap.
  driver::DriverCalls calls_;
};

}  // namespace penstock::policy::baseline
