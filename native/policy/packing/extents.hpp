// SPDX-License-Identifier: Apache-2.0
// The physical memory of one pool as a line of bytes, chunk after chunk, tiled by extents: used by
// a block, free, or vacant (no chunk there yet).  Free neighbours are one extent.  The line is
// divided into slots, the size of the smallest chunk; a chunk takes one or several.
//
// Each free extent carries the stream that last used it, so that its bytes go to another stream
// only when that is safe; kAnyStream marks what no unfinished work touches.  Taking and freeing
// cost constant time, and time in proportion to the slots that the smaller part spans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/status.hpp"
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

  [[nodiscard]] std::uint64_t end() const { return start + bytes; }
  bool operator==(const Piece&) const = default;
};

class Extents {
 public:
  // A line of vacant slots of 2^slot_shift bytes.
  Extents(std::uint64_t slots, int slot_shift)
      : shift_(slot_shift), cover_(slots, 0), chunks_(slots), bins_(1), free_of_(1, 0) {
    Extent all;
    all.bytes = slots << shift_;
    make_room();
    first_ = last_ = make(all);
    vacancies_.insert(0);
  }

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
  [[nodiscard]] std::uint64_t boundary_after(std::uint64_t start) const {
    const Piece chunk = chunk_at(start);
    return chunk.start == start ? start : chunk.end();
  }
  [[nodiscard]] std::uint64_t boundary_before(std::uint64_t end) const {
    const Piece chunk = chunk_at(end - 1);
    return chunk.end() == end ? end : chunk.start;
  }
  [[nodiscard]] Bytes free_bytes(StreamTag tag) const {
    return tag < free_of_.size() ? free_of_[tag] : 0;
  }

  // The smallest free extent for `tag` with at least `bytes` that a bounded search finds, or kNone.
  [[nodiscard]] ExtentId best(Bytes bytes, StreamTag tag) const {
    ExtentId own = kNone;
    if (tag != kAnyStream && tag < bins_.size()) own = bins_[tag].best(links_, bytes);
    const ExtentId any = bins_[kAnyStream].best(links_, bytes);
    if (own == kNone) return any;
    if (any == kNone) return own;
    return extents_[any].bytes < extents_[own].bytes ? any : own;
  }
  // Any one, however long the search; kNone if there is none.
  [[nodiscard]] ExtentId first_fit(Bytes bytes, StreamTag tag) const {
    ExtentId found = kNone;
    each_free(bytes, tag, [&](ExtentId id) {
      found = id;
      return false;
    });
    return found;
  }
  // The extent that holds the byte at `address`.
  [[nodiscard]] ExtentId at(std::uint64_t address) const {
    ExtentId id = cover_[address >> shift_];
    while (extents_[id].end() <= address) id = extents_[id].after;
    return id;
  }
  // What keeps `tag` from using a piece, which begins or ends a chunk: kNone if nothing does.
  [[nodiscard]] ExtentId blocker(const Piece& piece, StreamTag tag) const {
    const std::uint64_t slot = piece.start >> shift_;
    if (piece.start == slot << shift_) {  // forwards
      for (ExtentId id = cover_[slot];; id = extents_[id].after) {
        if (!usable(extents_[id], tag)) return id;
        if (extents_[id].end() >= piece.end()) return kNone;
      }
    }
    // It ends a chunk: backwards from its last byte, which takes one step where the piece is free.
    const std::uint64_t next = piece.end() >> shift_;
    ExtentId id = next < cover_.size() ? cover_[next] : last_;
    if (extents_[id].start >= piece.end()) id = extents_[id].before;
    for (;; id = extents_[id].before) {
      if (!usable(extents_[id], tag)) return id;
      if (extents_[id].start <= piece.start) return kNone;
    }
  }

  // Free bytes become used by `owner`: the new extent.  All of them must be free for `tag`.
  ExtentId take(const Piece& piece, StreamTag tag, std::uint32_t owner) {
    make_room();
    ExtentId id = at(piece.start);
    leave(id);
    while (extents_[id].end() < piece.end()) {  // neighbours of another tag
      const ExtentId next = extents_[id].after;
      leave(next);
      const StreamTag joint =
          extents_[id].tag == kAnyStream ? extents_[next].tag : extents_[id].tag;
      const std::uint32_t epoch = std::max(extents_[id].epoch, extents_[next].epoch);
      id = join(id, next);
      extents_[id].tag = joint;
      extents_[id].epoch = epoch;
    }
    return use(id, piece, tag, owner);
  }
  // The same for the first bytes of a free extent, without looking for it.
  ExtentId take_front(ExtentId id, Bytes bytes, StreamTag tag, std::uint32_t owner) {
    make_room();
    leave(id);
    return use(id, {extents_[id].start, bytes}, tag, owner);
  }
  // Used bytes become free; returns the first watcher, if there is any.
  std::uint32_t release(ExtentId id, StreamTag tag, std::uint32_t epoch) {
    const std::uint32_t watchers = std::exchange(extents_[id].watchers, kNone);
    extents_[id].owner = kNone;
    set_free(id, tag, epoch);
    return watchers;
  }
  // For so many pieces to be taken, and for all extents to be spare.
  void make_room(std::size_t carvings = 1) {
    const std::size_t room = extents_.size() + 2 * carvings;
    room_for(spare_, room);
    room_for(links_, room);
    room_for(extents_, room);
  }
  void set_watchers(ExtentId id, std::uint32_t head) { extents_[id].watchers = head; }

  // Vacant slots become chunks of so many slots each, free for `tag`.
  void populate(std::uint64_t first_slot, const std::vector<std::uint32_t>& sizes, StreamTag tag) {
    make_room();
    make_bin(tag);
    auto slot = static_cast<std::uint32_t>(first_slot);
    for (const std::uint32_t slots : sizes) {
      const Chunk chunk{slot, slots};
      for (; slot < chunk.first + slots; ++slot) chunks_[slot] = chunk;
    }
    const ExtentId id = at(first_slot << shift_);
    const std::uint64_t start = first_slot << shift_;
    const std::uint64_t end = std::uint64_t{slot} << shift_;
    if (extents_[id].end() > end) vacancies_.insert(end);
    if (extents_[id].start == start) vacancies_.erase(start);
    set_free(carve(id, start, end - start), tag, 0);
  }
  // Whole free chunks become vacant, unless `unmap()` fails; nothing else can once that has worked.
  template <class Unmap>
  Status vacate(std::uint64_t first_slot, std::uint64_t slots, Unmap&& unmap) {
    make_room();
    vacancies_.insert(first_slot << shift_);
    if (Status status = guarded(unmap); !status.ok()) {
      vacancies_.erase(first_slot << shift_);
      return status;
    }
    ExtentId id = at(first_slot << shift_);
    const std::uint64_t end = (first_slot + slots) << shift_;
    leave(id);
    while (extents_[id].end() < end) {
      const ExtentId next = extents_[id].after;
      leave(next);
      id = join(id, next);
    }
    id = carve(id, first_slot << shift_, slots << shift_);
    extents_[id].state = ExtentState::kVacant;
    extents_[id].tag = kAnyStream;
    const auto vacant = [&](ExtentId other) {
      return other != kNone && extents_[other].state == ExtentState::kVacant;
    };
    if (vacant(extents_[id].before)) {
      vacancies_.erase(first_slot << shift_);
      id = join(extents_[id].before, id);
    }
    if (const ExtentId after = extents_[id].after; vacant(after)) {
      vacancies_.erase(extents_[after].start);
      id = join(id, after);
    }
    return {};
  }

  // Work of `from` up to and including `epoch` is over, or `to` waits for it: what `from` had
  // freed by then is free for `to`, as if `to` had freed it in `to_epoch` (0: long ago).
  void hand_over(StreamTag from, StreamTag to, std::uint32_t epoch, std::uint32_t to_epoch) {
    if (from == kAnyStream || from >= bins_.size() || from == to) return;
    make_bin(to);
    std::vector<ExtentId> all;
    bins_[from].each_from(links_, kUnit, [&](ExtentId id) {
      if (extents_[id].epoch <= epoch) all.push_back(id);
      return true;
    });
    for (const ExtentId id : all) {
      leave(id);
      set_free(id, to, to_epoch);  // joins neighbours of `to` and of no one, so none of `all`
    }
  }

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
  void make_bin(StreamTag tag) {
    if (tag >= free_of_.size()) free_of_.resize(tag + 1, 0);
    if (tag >= bins_.size()) bins_.resize(tag + 1);
  }
  ExtentId make(const Extent& extent) {
    if (spare_.empty()) {
      extents_.push_back(extent);
      links_.emplace_back();
      return static_cast<ExtentId>(extents_.size() - 1);
    }
    const ExtentId id = spare_.back();
    spare_.pop_back();
    extents_[id] = extent;
    return id;
  }
  void discard(ExtentId id) {
    extents_[id].state = ExtentState::kVacant;
    extents_[id].bytes = 0;
    spare_.push_back(id);
  }
  void set_cover(ExtentId id, std::uint64_t start, std::uint64_t end) {
    const std::uint64_t mask = slot_bytes() - 1;
    for (std::uint64_t slot = (start + mask) >> shift_; slot << shift_ < end; ++slot) {
      cover_[slot] = id;
    }
  }
  // Cuts an extent that is in no bin at `address`: both parts, neither in a bin.
  std::pair<ExtentId, ExtentId> split(ExtentId id, std::uint64_t address) {
    const Extent whole = extents_[id];
    Extent part = whole;
    const bool left_is_new = address - whole.start < whole.end() - address;
    if (left_is_new) {
      part.bytes = address - whole.start;
      part.after = id;
    } else {
      part.start = address;
      part.bytes = whole.end() - address;
      part.before = id;
    }
    const ExtentId made = make(part);
    Extent& rest = extents_[id];
    rest.bytes = whole.bytes - part.bytes;
    if (left_is_new) {
      rest.start = address;
      rest.before = made;
      if (whole.before != kNone) extents_[whole.before].after = made;
      if (first_ == id) first_ = made;
    } else {
      rest.after = made;
      if (whole.after != kNone) extents_[whole.after].before = made;
      if (last_ == id) last_ = made;
    }
    set_cover(made, part.start, part.end());
    return left_is_new ? std::pair{made, id} : std::pair{id, made};
  }
  // Joins neighbours of the same kind, neither in a bin; the larger keeps its number.
  ExtentId join(ExtentId left, ExtentId right) {
    const bool keep_left = extents_[left].bytes >= extents_[right].bytes;
    const ExtentId kept = keep_left ? left : right;
    const ExtentId gone = keep_left ? right : left;
    const Extent absorbed = extents_[gone];
    Extent& extent = extents_[kept];
    extent.start = std::min(extent.start, absorbed.start);
    extent.bytes += absorbed.bytes;
    if (keep_left) {
      extent.after = absorbed.after;
      if (absorbed.after != kNone) extents_[absorbed.after].before = kept;
      if (last_ == gone) last_ = kept;
    } else {
      extent.before = absorbed.before;
      if (absorbed.before != kNone) extents_[absorbed.before].after = kept;
      if (first_ == gone) first_ = kept;
    }
    extent.state = extents_[keep_left ? left : right].state;
    set_cover(kept, absorbed.start, absorbed.end());
    discard(gone);
    return kept;
  }
  // Cuts [start, start + bytes) out of an extent in no bin; the rest goes back into the bins.
  ExtentId carve(ExtentId id, std::uint64_t start, Bytes bytes) {
    const bool free = extents_[id].state == ExtentState::kFree;
    if (extents_[id].start < start) {
      const auto [rest, kept] = split(id, start);
      if (free) enter(rest);
      id = kept;
    }
    if (extents_[id].bytes > bytes) {
      const auto [kept, rest] = split(id, start + bytes);
      if (free) enter(rest);
      id = kept;
    }
    return id;
  }
  // A piece of a free extent in no bin becomes used.
  ExtentId use(ExtentId id, const Piece& piece, StreamTag tag, std::uint32_t owner) {
    id = carve(id, piece.start, piece.bytes);
    Extent& used = extents_[id];
    used.state = ExtentState::kUsed;
    used.tag = tag;
    used.owner = owner;
    used.watchers = kNone;
    return id;
  }
  // Into its bin, and the sums.
  void enter(ExtentId id) {
    const Extent& extent = extents_[id];
    bins_[extent.tag].insert(links_, id, extent.bytes, extent.start);
    free_of_[extent.tag] += extent.bytes;
  }
  void leave(ExtentId id) {
    const Extent& extent = extents_[id];
    bins_[extent.tag].erase(links_, id);
    free_of_[extent.tag] -= extent.bytes;
  }
  void set_free(ExtentId id, StreamTag tag, std::uint32_t epoch) {
    make_bin(tag);
    extents_[id].state = ExtentState::kFree;
    const auto joins = [&](ExtentId other) {
      if (other == kNone || extents_[other].state != ExtentState::kFree) return false;
      const StreamTag its = extents_[other].tag;
      if (its != tag && its != kAnyStream && tag != kAnyStream) return false;
      if (tag == kAnyStream) tag = its;
      epoch = std::max(epoch, extents_[other].epoch);
      leave(other);
      return true;
    };
    if (const ExtentId before = extents_[id].before; joins(before)) id = join(before, id);
    if (const ExtentId after = extents_[id].after; joins(after)) id = join(id, after);
    extents_[id].tag = tag;
    extents_[id].epoch = tag == kAnyStream ? 0 : epoch;
    enter(id);
  }

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
