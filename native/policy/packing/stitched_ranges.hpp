// SPDX-License-Identifier: Apache-2.0
// The stitched ranges that exist: addresses behind which pieces of the line lie side by side.  One
// serves a request, without a driver call, when its bytes are free.
//
// A range that could not be used waits for one used extent that lies in its way (a watched literal,
// Moskewicz et al., DAC 2001): it is looked at again only after that extent was freed.  So neither
// many ranges nor many blocks slow a search down.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "policy/packing/extents.hpp"

namespace penstock::policy::packing {

using RangeId = std::uint32_t;

struct StitchedRange {
  enum class State : std::uint8_t { kDropped, kCached, kWaiting, kUsed };

  std::vector<Piece> pieces;   // the first may end a chunk, the last begins one, the rest are whole
  std::vector<ExtentId> used;  // while a block lives in it
  Bytes bytes = 0;
  Bytes mapped = 0;  // of the chunks behind it
  std::uint64_t last_use = 0;
  State state = State::kDropped;
  ExtentId waits_for = kNone;
  RangeId waits_before = kNone;  // others that wait for the same extent
  RangeId waits_after = kNone;
};

class StitchedRanges {
 public:
  explicit StitchedRanges(Extents& extents) : extents_(extents) {}

  [[nodiscard]] const StitchedRange& operator[](RangeId id) const { return ranges_[id]; }
  [[nodiscard]] std::size_t size() const { return live_; }
  [[nodiscard]] Bytes mapped() const { return mapped_; }  // by all of them
  [[nodiscard]] std::size_t ids() const { return ranges_.size(); }

  RangeId add(std::vector<Piece> pieces);
  // The chunks that a range of these pieces maps, in order.
  [[nodiscard]] std::vector<Piece> chunks_of(const std::vector<Piece>& pieces) const;
  void drop(RangeId id);  // not in use

  // A range with room for `bytes`, and no more than `limit`, whose beginning is free for `tag`: the
  // one whose turn it is before others.
  [[nodiscard]] RangeId find(Bytes bytes, Bytes limit, StreamTag tag);

  // The first `bytes` of the range become used by `owner`.
  void take(RangeId id, Bytes bytes, StreamTag tag, std::uint32_t owner, std::uint64_t now);
  void release(RangeId id, StreamTag tag, std::uint32_t epoch);
  // Look again at the ranges that waited for an extent that has been freed.
  void wake(RangeId first);

  // The least recently used range that is not in use, or kNone.
  [[nodiscard]] RangeId oldest() const;
  // Those with bytes in [start, end).
  [[nodiscard]] std::vector<RangeId> mapping(std::uint64_t start, std::uint64_t end) const;

 private:
  static constexpr int kTries = 32;
  static constexpr std::size_t kLongestTurn = 1024;
  static constexpr std::size_t kMostTurns =
      8192;  // sizes; a program that never repeats one has more

  RangeId next_in_turn(Bytes bytes, StreamTag tag);
  // Whether the range can serve; if a used extent is in the way, the range waits for it.
  bool is_free(RangeId id, Bytes bytes, StreamTag tag);
  [[nodiscard]] ExtentId blocker(const StitchedRange& range, Bytes bytes, StreamTag tag) const;
  void wait_for(RangeId id, ExtentId extent);
  void stop_waiting(RangeId id);

  Extents& extents_;
  std::vector<StitchedRange> ranges_;
  std::vector<BinLink> links_;
  std::vector<RangeId> spare_;
  SizeBins cached_;
  std::unordered_map<Bytes, std::deque<RangeId>> turns_;  // by size: what served it, in order
  std::size_t live_ = 0;
  Bytes mapped_ = 0;
};

}  // namespace penstock::policy::packing
