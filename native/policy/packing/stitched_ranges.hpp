// SPDX-License-Identifier: Apache-2.0
// The stitched ranges that exist: addresses behind which pieces of the line lie side by side.  One
// serves a request, without a driver call, when its bytes are free.
//
// A range that could not be used waits for one used extent that lies in its way (a watched literal,
// Moskewicz et al., DAC 2001): it is looked at again only after that extent was freed.  So neither
// many ranges nor many blocks slow a search down.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
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

  RangeId add(std::vector<Piece> pieces) {
    Bytes mapped = 0;
    for (const Piece& chunk : chunks_of(pieces)) mapped += chunk.bytes;
    room_for(spare_, ranges_.size() + 1);
    room_for(links_, ranges_.size() + 1);
    RangeId id;
    if (spare_.empty()) {
      id = static_cast<RangeId>(ranges_.size());
      ranges_.emplace_back();
      links_.emplace_back();
    } else {
      id = spare_.back();
      spare_.pop_back();
    }
    StitchedRange& range = ranges_[id];
    range = {};
    range.pieces = std::move(pieces);
    for (const Piece& piece : range.pieces) range.bytes += piece.bytes;
    range.mapped = mapped;
    range.state = State::kCached;
    cached_.insert(links_, id, range.bytes);
    ++live_;
    mapped_ += range.mapped;
    return id;
  }
  // The chunks that a range of these pieces maps, in order.
  [[nodiscard]] std::vector<Piece> chunks_of(const std::vector<Piece>& pieces) const {
    std::vector<Piece> chunks;
    for (const Piece& piece : pieces) {
      for (std::uint64_t at = piece.start; at < piece.end();) {
        const Piece chunk = extents_.chunk_at(at);
        chunks.push_back(chunk);
        at = chunk.end();
      }
    }
    return chunks;
  }
  // Not in use.
  void drop(RangeId id) {
    StitchedRange& range = ranges_[id];
    if (range.state == State::kCached) cached_.erase(links_, id);
    if (range.state == State::kWaiting) stop_waiting(id);
    range.state = State::kDropped;
    range.pieces.clear();
    --live_;
    mapped_ -= range.mapped;
    spare_.push_back(id);
  }

  // A range with room for `bytes`, and no more than `limit`, whose beginning is free for `tag`: the
  // one whose turn it is before others.
  [[nodiscard]] RangeId find(Bytes bytes, Bytes limit, StreamTag tag) {
    if (const RangeId id = next_in_turn(bytes, tag); id != kNone) return id;
    RangeId found = kNone;
    int tries = kTries;
    cached_.each_from(links_, bytes, [&](RangeId id) {
      if (ranges_[id].bytes > limit || --tries < 0) return false;
      if (is_free(id, bytes, tag)) found = id;
      return found == kNone;
    });
    return found;
  }

  // The first `bytes` of the range become used by `owner`.
  void take(RangeId id, Bytes bytes, StreamTag tag, std::uint32_t owner, std::uint64_t now) {
    StitchedRange& range = ranges_[id];
    range.used.reserve(range.pieces.size());
    extents_.make_room(range.pieces.size());
    if (turns_.size() >= kMostTurns) turns_.clear();
    std::deque<RangeId>& turn = turns_[bytes];
    turn.push_back(id);
    if (turn.size() > kLongestTurn) turn.pop_front();
    cached_.erase(links_, id);
    range.state = State::kUsed;
    range.last_use = now;
    range.used.clear();
    for (const Piece& piece : range.pieces) {
      const Bytes part = std::min(bytes, piece.bytes);
      range.used.push_back(extents_.take({piece.start, part}, tag, owner));
      bytes -= part;
      if (bytes == 0) break;
    }
  }
  void release(RangeId id, StreamTag tag, std::uint32_t epoch) {
    StitchedRange& range = ranges_[id];
    for (const ExtentId extent : range.used) wake(extents_.release(extent, tag, epoch));
    range.used.clear();
    range.state = State::kCached;
    cached_.insert(links_, id, range.bytes);
  }
  // Look again at the ranges that waited for an extent that has been freed.
  void wake(RangeId first) {
    for (RangeId id = first; id != kNone;) {
      StitchedRange& range = ranges_[id];
      const RangeId next = range.waits_after;
      range.waits_for = range.waits_before = range.waits_after = kNone;
      range.state = State::kCached;
      cached_.insert(links_, id, range.bytes);
      id = next;
    }
  }

  // The least recently used range that is not in use, or kNone.
  [[nodiscard]] RangeId oldest() const {
    RangeId oldest = kNone;
    for (RangeId id = 0; id < ranges_.size(); ++id) {
      const State state = ranges_[id].state;
      if (state == State::kDropped || state == State::kUsed) continue;
      if (oldest == kNone || ranges_[id].last_use < ranges_[oldest].last_use) oldest = id;
    }
    return oldest;
  }
  // Those with bytes in [start, end).
  [[nodiscard]] std::vector<RangeId> mapping(std::uint64_t start, std::uint64_t end) const {
    std::vector<RangeId> found;
    for (RangeId id = 0; id < ranges_.size(); ++id) {
      if (ranges_[id].state == State::kDropped) continue;
      for (const Piece& piece : ranges_[id].pieces) {
        if (piece.start < end && piece.end() > start) {
          found.push_back(id);
          break;
        }
      }
    }
    return found;
  }

 private:
  using State = StitchedRange::State;
  static constexpr int kTries = 32;
  static constexpr std::size_t kLongestTurn = 1024;
  static constexpr std::size_t kMostTurns =
      8192;  // sizes; a program that never repeats one has more

  // The range that served this size the longest ago, if it is free.  In a loop that repeats itself
  // it is; where it is not, the order it comes from has passed, and it leaves the turn.
  RangeId next_in_turn(Bytes bytes, StreamTag tag) {
    const auto turn = turns_.find(bytes);
    if (turn == turns_.end()) return kNone;
    std::deque<RangeId>& ranges = turn->second;
    while (!ranges.empty()) {
      const RangeId id = ranges.front();
      const State state = ranges_[id].state;
      if (state == State::kUsed) return kNone;  // as are those behind it
      ranges.pop_front();
      if (state == State::kCached && ranges_[id].bytes >= bytes && is_free(id, bytes, tag))
        return id;
    }
    return kNone;
  }
  // Whether the range can serve; if a used extent is in the way, the range waits for it.
  bool is_free(RangeId id, Bytes bytes, StreamTag tag) {
    const StitchedRange& range = ranges_[id];
    // A part of the first piece alone would not end its chunk; small requests have other places.
    if (range.pieces.front().bytes > bytes) return false;
    const ExtentId extent = blocker(range, bytes, tag);
    // A free extent in the way is another stream's: there is nothing to wait for.
    if (extent != kNone && extents_[extent].state == ExtentState::kUsed) wait_for(id, extent);
    return extent == kNone;
  }
  [[nodiscard]] ExtentId blocker(const StitchedRange& range, Bytes bytes, StreamTag tag) const {
    for (const Piece& piece : range.pieces) {
      const Bytes part = std::min(bytes, piece.bytes);
      if (const ExtentId id = extents_.blocker({piece.start, part}, tag); id != kNone) return id;
      bytes -= part;
      if (bytes == 0) break;
    }
    return kNone;
  }
  void wait_for(RangeId id, ExtentId extent) {
    cached_.erase(links_, id);
    StitchedRange& range = ranges_[id];
    range.state = State::kWaiting;
    range.waits_for = extent;
    range.waits_before = kNone;
    range.waits_after = extents_[extent].watchers;
    if (range.waits_after != kNone) ranges_[range.waits_after].waits_before = id;
    extents_.set_watchers(extent, id);
  }
  void stop_waiting(RangeId id) {
    const StitchedRange& range = ranges_[id];
    if (range.waits_after != kNone) ranges_[range.waits_after].waits_before = range.waits_before;
    if (range.waits_before != kNone) {
      ranges_[range.waits_before].waits_after = range.waits_after;
    } else {
      extents_.set_watchers(range.waits_for, range.waits_after);
    }
  }

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
