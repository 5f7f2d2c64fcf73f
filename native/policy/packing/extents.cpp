// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/extents.hpp"

#include <algorithm>
#include <utility>

namespace penstock::policy::packing {

Extents::Extents(std::uint64_t slots, int slot_shift)
    : shift_(slot_shift), cover_(slots, 0), chunks_(slots), bins_(1), free_of_(1, 0) {
  Extent all;
  all.bytes = slots << shift_;
  first_ = last_ = make(all);
  vacancies_.insert(0);
}

ExtentId Extents::best(Bytes bytes, StreamTag tag) const {
  ExtentId own = kNone;
  if (tag != kAnyStream && tag < bins_.size()) own = bins_[tag].best(links_, bytes);
  const ExtentId any = bins_[kAnyStream].best(links_, bytes);
  if (own == kNone) return any;
  if (any == kNone) return own;
  return extents_[any].bytes < extents_[own].bytes ? any : own;
}

ExtentId Extents::first_fit(Bytes bytes, StreamTag tag) const {
  ExtentId found = kNone;
  each_free(bytes, tag, [&](ExtentId id) {
    found = id;
    return false;
  });
  return found;
}

ExtentId Extents::at(std::uint64_t address) const {
  ExtentId id = cover_[address >> shift_];
  while (extents_[id].end() <= address) id = extents_[id].after;
  return id;
}

ExtentId Extents::blocker(const Piece& piece, StreamTag tag) const {
  const std::uint64_t slot = piece.start >> shift_;
  if (piece.start == slot << shift_) {  // forwards
    for (ExtentId id = cover_[slot];; id = extents_[id].after) {
      if (!usable(extents_[id], tag)) return id;
      if (extents_[id].end() >= piece.start + piece.bytes) return kNone;
    }
  }
  // It ends a chunk: backwards from its last byte, which takes one step where the piece is free.
  const std::uint64_t next = (piece.start + piece.bytes) >> shift_;
  ExtentId id = next < cover_.size() ? cover_[next] : last_;
  if (extents_[id].start >= piece.start + piece.bytes) id = extents_[id].before;
  for (;; id = extents_[id].before) {
    if (!usable(extents_[id], tag)) return id;
    if (extents_[id].start <= piece.start) return kNone;
  }
}

ExtentId Extents::take(const Piece& piece, StreamTag tag, std::uint32_t owner) {
  ExtentId id = at(piece.start);
  leave(id);
  while (extents_[id].end() < piece.start + piece.bytes) {  // neighbours of another tag
    const ExtentId next = extents_[id].after;
    leave(next);
    const StreamTag joint = extents_[id].tag == kAnyStream ? extents_[next].tag : extents_[id].tag;
    const std::uint32_t epoch = std::max(extents_[id].epoch, extents_[next].epoch);
    id = join(id, next);
    extents_[id].tag = joint;
    extents_[id].epoch = epoch;
  }
  return use(id, piece, tag, owner);
}

ExtentId Extents::take_front(ExtentId id, Bytes bytes, StreamTag tag, std::uint32_t owner) {
  leave(id);
  return use(id, {extents_[id].start, bytes}, tag, owner);
}

// A piece of a free extent in no bin becomes used.
ExtentId Extents::use(ExtentId id, const Piece& piece, StreamTag tag, std::uint32_t owner) {
  id = carve(id, piece.start, piece.bytes);
  Extent& used = extents_[id];
  used.state = ExtentState::kUsed;
  used.tag = tag;
  used.owner = owner;
  used.watchers = kNone;
  return id;
}

std::uint32_t Extents::release(ExtentId id, StreamTag tag, std::uint32_t epoch) {
  const std::uint32_t watchers = std::exchange(extents_[id].watchers, kNone);
  extents_[id].owner = kNone;
  set_free(id, tag, epoch);
  return watchers;
}

void Extents::set_free(ExtentId id, StreamTag tag, std::uint32_t epoch) {
  if (tag >= bins_.size()) {
    bins_.resize(tag + 1);
    free_of_.resize(tag + 1, 0);
  }
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

std::uint64_t Extents::boundary_after(std::uint64_t start) const {
  const Piece chunk = chunk_at(start);
  return chunk.start == start ? start : chunk.start + chunk.bytes;
}

std::uint64_t Extents::boundary_before(std::uint64_t end) const {
  const Piece chunk = chunk_at(end - 1);
  return chunk.start + chunk.bytes == end ? end : chunk.start;
}

void Extents::populate(std::uint64_t first_slot, const std::vector<std::uint32_t>& sizes,
                       StreamTag tag) {
  auto slot = static_cast<std::uint32_t>(first_slot);
  for (const std::uint32_t slots : sizes) {
    const Chunk chunk{slot, slots};
    for (; slot < chunk.first + slots; ++slot) chunks_[slot] = chunk;
  }
  const ExtentId id = at(first_slot << shift_);
  const std::uint64_t start = first_slot << shift_;
  const std::uint64_t end = std::uint64_t{slot} << shift_;
  if (extents_[id].start == start) vacancies_.erase(start);
  if (extents_[id].end() > end) vacancies_.insert(end);
  set_free(carve(id, start, end - start), tag, 0);
}

void Extents::vacate(std::uint64_t first_slot, std::uint64_t slots) {
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
  if (vacant(extents_[id].before)) id = join(extents_[id].before, id);
  if (const ExtentId after = extents_[id].after; vacant(after)) {
    vacancies_.erase(extents_[after].start);
    id = join(id, after);
  }
  vacancies_.insert(extents_[id].start);
}

void Extents::hand_over(StreamTag from, StreamTag to, std::uint32_t epoch, std::uint32_t to_epoch) {
  if (from == kAnyStream || from >= bins_.size() || from == to) return;
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

ExtentId Extents::make(const Extent& extent) {
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

void Extents::discard(ExtentId id) {
  extents_[id].state = ExtentState::kVacant;
  extents_[id].bytes = 0;
  spare_.push_back(id);
}

void Extents::set_cover(ExtentId id, std::uint64_t start, std::uint64_t end) {
  const std::uint64_t mask = slot_bytes() - 1;
  for (std::uint64_t slot = (start + mask) >> shift_; slot << shift_ < end; ++slot) {
    cover_[slot] = id;
  }
}

std::pair<ExtentId, ExtentId> Extents::split(ExtentId id, std::uint64_t address) {
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

ExtentId Extents::join(ExtentId left, ExtentId right) {
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

ExtentId Extents::carve(ExtentId id, std::uint64_t start, Bytes bytes) {
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

void Extents::enter(ExtentId id) {
  const Extent& extent = extents_[id];
  bins_[extent.tag].insert(links_, id, extent.bytes, extent.start);
  free_of_[extent.tag] += extent.bytes;
}

void Extents::leave(ExtentId id) {
  const Extent& extent = extents_[id];
  bins_[extent.tag].erase(links_, id);
  free_of_[extent.tag] -= extent.bytes;
}

}  // namespace penstock::policy::packing
