// SPDX-License-Identifier: Apache-2.0
// The physical memory of one pool as a line of bytes, chunk after chunk, tiled by extents: used by
// a block, free, or vacant (no chunk there yet).  Free neighbours are one extent.  The line is
// divided into slots, the size of the smallest chunk; a chunk takes one or several.
//
// Each free extent carries the stream that last used it, so that its bytes go to another stream
// only when that is safe; kAnyStream marks what no unfinished work touches.  Taking and freeing
// cost constant time, and time in proportion to the slots that the smaller part spans.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "policy/packing/size_bins.hpp"

namespace penstock::policy::packing {

using ExtentId = std::uint32_t;
using StreamTag = std::uint16_t;
inline constexpr StreamTag kAnyStream = 0;

enum class ExtentState : std::uint8_t { kVacant, kFree, kUsed };

struct Extent {
  std::uint64_t start = 0;
  Bytes bytes = 0;
  ExtentId before = kNone;  // by address
  ExtentId after = kNone;
  ExtentState state = ExtentState::kVacant;
  StreamTag tag = kAnyStream;
  // Free: work of `tag` given before this epoch ended may still touch it.
  std::uint32_t epoch = 0;
  std::uint32_t owner = kNone;     // used: the block
  std::uint32_t watchers = kNone;  // used: the first stitched range that waits for it

  [[nodiscard]] std::uint64_t end() const { return start + bytes; }
};

// Bytes of the line that lie side by side behind some addresses.
struct Piece {
  std::uint64_t start = 0;
  Bytes bytes = 0;
  bool operator==(const Piece&) const = default;
};

class Extents {
 public:
  // A line of vacant slots of 2^slot_shift bytes.
  Extents(std::uint64_t slots, int slot_shift);

  [[nodiscard]] const Extent& operator[](ExtentId id) const { return extents_[id]; }
  [[nodiscard]] ExtentId first() const { return first_; }
  // Where the vacant extents begin, the lowest first: few, however many blocks there are.
  [[nodiscard]] const std::set<std::uint64_t>& vacancies() const { return vacancies_; }
  [[nodiscard]] Bytes slot_bytes() const { return Bytes{1} << shift_; }
  [[nodiscard]] std::uint64_t slots() const { return cover_.size(); }
  // The chunk that holds the byte at `address`.
  [[nodiscard]] Piece chunk_at(std::uint64_t address) const {
    const Chunk& chunk = chunks_[address >> shift_];
    return {std::uint64_t{chunk.first} << shift_, Bytes{chunk.slots} << shift_};
  }
  // The first boundary of chunks at or after an address in an extent, and the last at or before the
  // end of one.
  [[nodiscard]] std::uint64_t boundary_after(std::uint64_t start) const;
  [[nodiscard]] std::uint64_t boundary_before(std::uint64_t end) const;
  [[nodiscard]] Bytes free_bytes(StreamTag tag) const {
    return tag < free_of_.size() ? free_of_[tag] : 0;
  }

  // The smallest free extent for `tag` with at least `bytes` that a bounded search finds, or kNone.
  [[nodiscard]] ExtentId best(Bytes bytes, StreamTag tag) const;
  // Any one, however long the search; kNone if there is none.
  [[nodiscard]] ExtentId first_fit(Bytes bytes, StreamTag tag) const;
  // The extent that holds the byte at `address`.
  [[nodiscard]] ExtentId at(std::uint64_t address) const;
  // What keeps `tag` from using a piece, which begins or ends a chunk: kNone if nothing does.
  [[nodiscard]] ExtentId blocker(const Piece& piece, StreamTag tag) const;

  // Free bytes become used by `owner`: the new extent.  All of them must be free for `tag`.
  ExtentId take(const Piece& piece, StreamTag tag, std::uint32_t owner);
  // The same for the first bytes of a free extent, without looking for it.
  ExtentId take_front(ExtentId id, Bytes bytes, StreamTag tag, std::uint32_t owner);
  // Used bytes become free; returns the first watcher, if there is any.
  std::uint32_t release(ExtentId id, StreamTag tag, std::uint32_t epoch);
  void set_watchers(ExtentId id, std::uint32_t head) { extents_[id].watchers = head; }

  // Vacant slots become chunks of so many slots each, free for `tag`.
  void populate(std::uint64_t first_slot, const std::vector<std::uint32_t>& sizes, StreamTag tag);
  // Whole free chunks become vacant.
  void vacate(std::uint64_t first_slot, std::uint64_t slots);

  // Work of `from` up to and including `epoch` is over, or `to` waits for it: what `from` had
  // freed by then is free for `to`, as if `to` had freed it in `to_epoch` (0: long ago).
  void hand_over(StreamTag from, StreamTag to, std::uint32_t epoch, std::uint32_t to_epoch);

  // visit(id) for every free extent of at least `bytes` that `tag` may use, until it returns false.
  template <class Visit>
  void each_free(Bytes bytes, StreamTag tag, Visit&& visit) const {
    if (tag != kAnyStream && tag < bins_.size()) bins_[tag].each_from(links_, bytes, visit);
    bins_[kAnyStream].each_from(links_, bytes, visit);
  }

 private:
  [[nodiscard]] bool usable(const Extent& extent, StreamTag tag) const {
    return extent.state == ExtentState::kFree && (extent.tag == tag || extent.tag == kAnyStream);
  }
  ExtentId make(const Extent& extent);
  void discard(ExtentId id);
  void set_cover(ExtentId id, std::uint64_t start, std::uint64_t end);
  // Cuts an extent that is in no bin at `address`: both parts, neither in a bin.
  std::pair<ExtentId, ExtentId> split(ExtentId id, std::uint64_t address);
  // Joins neighbours of the same kind, neither in a bin; the larger keeps its number.
  ExtentId join(ExtentId left, ExtentId right);
  // Cuts [start, start + bytes) out of an extent in no bin; the rest goes back into the bins.
  ExtentId carve(ExtentId id, std::uint64_t start, Bytes bytes);
  ExtentId use(ExtentId id, const Piece& piece, StreamTag tag, std::uint32_t owner);
  void enter(ExtentId id);  // into its bin, and the sums
  void leave(ExtentId id);
  void set_free(ExtentId id, StreamTag tag, std::uint32_t epoch);

  int shift_;
  std::vector<Extent> extents_;
  std::vector<BinLink> links_;
  std::vector<ExtentId> spare_;
  struct Chunk {
    std::uint32_t first = 0;
    std::uint32_t slots = 0;
  };
  std::vector<ExtentId> cover_;  // by slot: the extent that holds its first byte
  std::vector<Chunk> chunks_;    // by slot
  std::set<std::uint64_t> vacancies_;
  std::vector<SizeBins> bins_;  // by tag
  std::vector<Bytes> free_of_;  // by tag
  ExtentId first_ = 0;
  ExtentId last_ = 0;
};

}  // namespace penstock::policy::packing
