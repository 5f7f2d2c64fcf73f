// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/packer.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace penstock::policy::packing {

namespace {

// Memory is short when less than a quarter of what is held may be added: the last fifth of a budget
// in chunks of 2 MiB lets opt1.3b_full run in 20 MiB less of 15 GiB, and costs 29 us a chunk once.
constexpr std::uint64_t kScarce = 4;

// Of huge chunks there are at least so many: one lost at the end of a growth is below 1 % of it.
constexpr std::uint64_t kManyChunks = 128;

// All streams but the largest may have this part of the memory added for them, rather than take
// what the largest freed; and what they freed is left to them up to the second.  What was added
// counts, not what they have: else they are given more each time that they lost it.
constexpr std::uint64_t kApart = 8;
constexpr std::uint64_t kLeft = 6;

}  // namespace

using Kind = Decision::Kind;

std::uint64_t Decision::slots() const {
  return std::accumulate(chunks.begin(), chunks.end(), std::uint64_t{0});
}

Packer::Packer(const Options& options, std::uint64_t slots)
    : options_(options),
      shift_(std::countr_zero(options.smallest_chunk)),
      extents_(slots, shift_),
      ranges_(extents_) {}

BlockId Packer::place_now(const Request& request) {
  const Bytes bytes = rounded(request);
  const ExtentId extent = extents_.best(bytes, request.tag);
  // The line first: what is decided there does not depend on the ranges made so far, so that a loop
  // finds in its next iteration what it made in this one.
  if (extent != kNone) return put(request, bytes, extent);
  if (ranges_.size() == 0 || (bytes < options_.stitch_limit && !request.desperate)) return kNone;
  const auto reach = static_cast<Bytes>(static_cast<double>(bytes) * options_.reuse_limit);
  const RangeId range = ranges_.find(bytes, reach, request.tag);
  return range == kNone ? kNone : put_in_range(request, bytes, range);
}

Decision Packer::place(const Request& request) {
  Decision decision;
  decision.block = place_now(request);
  if (decision.block != kNone) {
    decision.kind = Kind::kPlaced;
    return decision;
  }
  const Bytes bytes = rounded(request);
  if (const ExtentId extent = extents_.first_fit(bytes, request.tag); extent != kNone) {
    decision.kind = Kind::kPlaced;
    decision.block = put(request, bytes, extent);
    return decision;
  }
  if (!may_stitch(request, bytes)) return grow(request, bytes, 0);
  if (options_.stitch_when == StitchWhen::kWhenFull) {
    decision = grow(request, bytes, 0);
    if (decision.kind == Kind::kGrow) return decision;
  }
  Stitch stitch = choose_stitch(extents_, bytes, request.tag);
  if (!stitch.pieces.empty()) {
    decision.kind = Kind::kStitch;
    decision.pieces = std::move(stitch.pieces);
    return decision;
  }
  // What is left of the device, and free ends of chunks, may hold what neither does alone.
  const bool exactly = options_.grow_exactly || request.desperate;
  return grow(request, bytes, exactly ? stitch.missing : 0);
}

bool Packer::may_stitch(const Request& request, Bytes bytes) const {
  if (!request.may_stitch) return false;
  if (bytes < options_.stitch_limit && !request.desperate) return false;
  switch (options_.stitch_when) {
    case StitchWhen::kFirst:
    case StitchWhen::kWhenFull:
      return true;
    case StitchWhen::kAfterRelease:
      return request.released;
    case StitchWhen::kNever:
      return false;
  }
  return false;
}

Decision Packer::grow(const Request& request, Bytes bytes, Bytes missing) {
  const std::uint64_t lacking = divide_up(missing, options_.smallest_chunk);
  Decision decision;
  // The first vacancy that, with the free bytes before it, holds the request in one piece; and the
  // first that holds what a stitch lacks.
  ExtentId scattered = kNone;
  for (const std::uint64_t start : extents_.vacancies()) {
    const ExtentId id = extents_.at(start);
    const Extent& vacancy = extents_[id];
    const std::uint64_t room = std::min(vacancy.bytes >> shift_, request.growable);
    if (lacking > 0 && lacking <= room && scattered == kNone) scattered = id;
    Bytes tail = 0;
    if (vacancy.before != kNone) {
      const Extent& before = extents_[vacancy.before];
      if (before.state == ExtentState::kFree &&
          (before.tag == request.tag || before.tag == kAnyStream)) {
        tail = before.bytes;
      }
    }
    const std::uint64_t whole = divide_up(bytes - std::min(tail, bytes), options_.smallest_chunk);
    if (whole > room || (lacking > 0 && whole > lacking)) continue;
    std::uint64_t slots = whole;
    if (allocations_ - last_growth_ < options_.burst_allocations) {
      // A hundredth of what there is at most, so that small programs stay small.
      slots = std::max(slots, std::min(options_.growth_bytes >> shift_, slots_ / 100));
    }
    decision.kind = Kind::kGrow;
    decision.first_slot = vacancy.start >> shift_;
    decision.chunks = cut(std::min(slots, room), request.growable);
    return decision;
  }
  if (scattered != kNone) {
    decision.kind = Kind::kGrow;
    decision.first_slot = extents_[scattered].start >> shift_;
    decision.chunks = cut(lacking, request.growable);
  }
  return decision;
}

// The largest chunks first, and the rest in ever smaller ones; small ones where memory runs short,
// since they pack better.
std::vector<std::uint32_t> Packer::cut(std::uint64_t slots, std::uint64_t growable) const {
  const bool scarce = growable < slots_ / kScarce;
  const Bytes large = std::max(options_.largest_chunk,
                               std::min(options_.huge_chunk, (slots << shift_) / kManyChunks));
  const std::uint64_t largest = scarce ? 1 : std::bit_floor(large >> shift_);
  const std::uint64_t share = std::max<std::uint64_t>(slots / options_.chunks_a_growth, 1);
  std::uint64_t size = std::min(largest, std::bit_floor(share));
  std::vector<std::uint32_t> chunks;
  while (slots > 0) {
    size = std::min(size, std::bit_floor(slots));
    chunks.push_back(static_cast<std::uint32_t>(size));
    slots -= size;
  }
  return chunks;
}

void Packer::grown(const Decision& decision, StreamTag tag) {
  Held& held = held_of(tag);
  extents_.populate(decision.first_slot, decision.chunks, tag);
  slots_ += decision.slots();
  held.grown += decision.slots() << shift_;
  last_growth_ = allocations_;
}

void Packer::release(BlockId id, std::uint32_t epoch) {
  Block& block = blocks_[id];
  held_of_[block.tag].used -= block.bytes;
  if (block.range == kNone) {
    ranges_.wake(extents_.release(block.extent, block.tag, epoch));
  } else {
    ranges_.release(block.range, block.tag, epoch);
  }
  block.live = false;
  spare_.push_back(id);
  --live_blocks_;
}

BlockId Packer::next_block(StreamTag tag) {
  (void)held_of(tag);
  if (!spare_.empty()) return spare_.back();
  room_for(blocks_, blocks_.size() + 1);
  room_for(spare_, blocks_.size() + 1);
  return static_cast<BlockId>(blocks_.size());
}

void Packer::make_block(BlockId id, const Request& request, Bytes bytes) {
  if (spare_.empty()) {
    blocks_.emplace_back();
  } else {
    spare_.pop_back();
  }
  blocks_[id] = {.bytes = bytes, .requested = request.bytes, .tag = request.tag, .live = true};
  held_of(request.tag).used += bytes;
  ++live_blocks_;
  ++allocations_;
}

BlockId Packer::put(const Request& request, Bytes bytes, ExtentId extent) {
  const BlockId id = next_block(request.tag);
  const std::uint64_t start = extents_[extent].start;
  extent = extents_.take_front(extent, bytes, request.tag, id);
  make_block(id, request, bytes);
  blocks_[id].offset = start;
  blocks_[id].extent = extent;
  return id;
}

BlockId Packer::put_in_range(const Request& request, Bytes bytes, RangeId range) {
  const BlockId id = next_block(request.tag);
  ranges_.take(range, bytes, request.tag, id, allocations_ + 1);
  make_block(id, request, bytes);
  blocks_[id].range = range;
  blocks_[id].offset = ranges_[range].pieces.front().start;
  return id;
}

bool Packer::keeps_apart(const Request& request) const {
  StreamTag largest = kAnyStream;
  Bytes most = 0;
  Bytes free = 0;
  Bytes grown = 0;
  for (StreamTag tag = 1; tag < held_of_.size(); ++tag) {
    free += extents_.free_bytes(tag);
    grown += held_of_[tag].grown;
    const Bytes held = held_of_[tag].used + extents_.free_bytes(tag);
    if (held >= most) {
      most = held;
      largest = tag;
    }
  }
  if (largest == kAnyStream) return false;
  const Bytes all = slots_ << shift_;
  if (request.tag == largest) return free - extents_.free_bytes(largest) < all / kLeft;
  return grown - held_of_[largest].grown + request.bytes < all / kApart;
}

std::vector<RangeId> Packer::idle_ranges(const Run& run) const {
  std::vector<RangeId> idle;
  const std::uint64_t start = run.first_slot << shift_;
  for (const RangeId id : ranges_.mapping(start, start + (run.slots << shift_))) {
    if (ranges_[id].state != StitchedRange::State::kUsed) idle.push_back(id);
  }
  return idle;
}

std::vector<Packer::Run> Packer::free_runs() const {
  std::vector<bool> held(extents_.slots());  // first slots of chunks that a range in use maps
  for (RangeId id = 0; id < ranges_.ids(); ++id) {
    if (ranges_[id].state != StitchedRange::State::kUsed) continue;
    for (const Piece& chunk : ranges_.chunks_of(ranges_[id].pieces)) {
      held[chunk.start >> shift_] = true;
    }
  }
  std::vector<Run> runs;
  for (ExtentId id = extents_.first(); id != kNone; id = extents_[id].after) {
    const Extent& extent = extents_[id];
    if (extent.state != ExtentState::kFree) continue;
    const std::uint64_t to = extents_.boundary_before(extent.end());
    Run run;
    for (std::uint64_t at = extents_.boundary_after(extent.start); at < to;) {
      const Piece chunk = extents_.chunk_at(at);
      if (!held[at >> shift_]) {
        if (run.slots == 0) run.first_slot = at >> shift_;
        run.slots += chunk.bytes >> shift_;
      } else if (run.slots > 0) {
        runs.push_back(std::exchange(run, {}));
      }
      at += chunk.bytes;
    }
    if (run.slots > 0) runs.push_back(run);
  }
  return runs;
}

}  // namespace penstock::policy::packing
