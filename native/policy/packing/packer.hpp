// SPDX-License-Identifier: Apache-2.0
// Where the blocks of one pool go.  Pure: it answers a request with a place, or with what has to be
// done first (more chunks, a stitched range); the caller does it, says so, and goes on.
//
// Order: the smallest extent of the line that fits; a stitched range that is free, one made for
// this size first; a new stitched range; new chunks at the end of the line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "policy/packing/extents.hpp"
#include "policy/packing/options.hpp"
#include "policy/packing/stitch.hpp"
#include "policy/packing/stitched_ranges.hpp"

namespace penstock::policy::packing {

using BlockId = std::uint32_t;

struct Request {
  Bytes bytes = 0;
  StreamTag tag = kAnyStream;
  std::uint64_t growable = 0;  // so many slots may be added
  bool may_stitch = true;      // false: address space has run out
  bool released = false;       // cached memory was given back for this request
  bool desperate = false;      // nothing else is left: stitch however small it is
};

struct Decision {
  enum class Kind : std::uint8_t { kPlaced, kGrow, kStitch, kFull };

  Kind kind = Kind::kFull;
  BlockId block = kNone;              // placed
  std::uint64_t first_slot = 0;       // grow:
  std::vector<std::uint32_t> chunks;  // the slots of each
  std::vector<Piece> pieces;          // stitch

  [[nodiscard]] std::uint64_t slots() const;
};

struct Block {
  Bytes bytes = 0;      // rounded up to units
  Bytes requested = 0;  // as asked for
  StreamTag tag = kAnyStream;
  bool live = false;
  RangeId range = kNone;     // stitched, or in the line
  ExtentId extent = kNone;   // in the line
  std::uint64_t offset = 0;  // of its first byte, in the line
};

class Packer {
 public:
  // A line of `slots` slots, the size of the smallest chunk, without chunks.
  Packer(const Options& options, std::uint64_t slots);

  // The request as a block, for the hot path: kNone if it needs more than looking.
  BlockId place_now(const Request& request);
  // The same, and what to do where that fails.
  Decision place(const Request& request);

  void grown(const Decision& decision, StreamTag tag);
  RangeId stitched(std::vector<Piece> pieces) { return ranges_.add(std::move(pieces)); }
  BlockId place_in(const Request& request, RangeId range) {  // one just stitched for it
    return put_in_range(request, rounded(request), range);
  }
  void release(BlockId block, std::uint32_t epoch);
  // Whether memory should rather be added for the request than taken from other streams: all
  // streams but the largest have so little together that keeping it apart wastes next to nothing.
  // What they are given else lies at other places in each iteration of a loop, in the way of the
  // largest stream's ranges.
  [[nodiscard]] bool keeps_apart(const Request& request) const;
  void hand_over(StreamTag from, StreamTag to, std::uint32_t epoch, std::uint32_t to_epoch = 0) {
    extents_.hand_over(from, to, epoch, to_epoch);
  }

  // Stitched ranges beyond the limits, the least recently used first; the caller drops them.
  [[nodiscard]] bool too_many_ranges() const {
    return ranges_.size() > options_.max_ranges || ranges_.mapped() > options_.range_limit;
  }
  [[nodiscard]] RangeId oldest_range() const { return ranges_.oldest(); }
  void drop_range(RangeId range) { ranges_.drop(range); }

  // Runs of free whole chunks that no range in use maps, and their end; before that, the idle
  // ranges that map them must be dropped.
  struct Run {
    std::uint64_t first_slot = 0;
    std::uint64_t slots = 0;
  };
  [[nodiscard]] std::vector<RangeId> idle_ranges(const Run& run) const;
  [[nodiscard]] std::vector<Run> free_runs() const;
  template <class Unmap>
  Status vacate(const Run& run, Unmap&& unmap) {
    PENSTOCK_TRY(extents_.vacate(run.first_slot, run.slots, unmap));
    slots_ -= run.slots;
    for (Held& held : held_of_) held.grown = 0;  // whoever had it: all begin anew
    return {};
  }

  [[nodiscard]] const Extents& extents() const { return extents_; }
  [[nodiscard]] const StitchedRanges& ranges() const { return ranges_; }
  [[nodiscard]] const Block& block(BlockId id) const { return blocks_[id]; }
  [[nodiscard]] std::uint64_t live_blocks() const { return live_blocks_; }

 private:
  static Bytes rounded(const Request& request) {
    return std::max(align_up(request.bytes, kUnit), kUnit);
  }
  BlockId put(const Request& request, Bytes bytes, ExtentId extent);
  BlockId put_in_range(const Request& request, Bytes bytes, RangeId range);
  // The next block, with all the memory that making it takes; and then it is made.
  BlockId next_block(StreamTag tag);
  void make_block(BlockId id, const Request& request, Bytes bytes);
  [[nodiscard]] bool may_stitch(const Request& request, Bytes bytes) const;
  // Chunks to be added for `bytes` in one piece, or for a stitch that lacks `missing` (0: none).
  [[nodiscard]] Decision grow(const Request& request, Bytes bytes, Bytes missing);
  [[nodiscard]] std::vector<std::uint32_t> cut(std::uint64_t slots, std::uint64_t growable) const;

  Options options_;
  int shift_;
  Extents extents_;
  StitchedRanges ranges_;
  std::vector<Block> blocks_;
  std::vector<BlockId> spare_;
  std::uint64_t live_blocks_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t last_growth_ = 0;
  std::uint64_t slots_ = 0;  // with chunks
  struct Held {
    Bytes used = 0;
    Bytes grown = 0;  // of the memory so much was added for it
  };
  Held& held_of(StreamTag tag) {
    if (tag >= held_of_.size()) held_of_.resize(tag + std::size_t{1});
    return held_of_[tag];
  }
  std::vector<Held> held_of_;  // by tag
};

}  // namespace penstock::policy::packing
