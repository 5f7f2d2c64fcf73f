// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/packer.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace penstock::policy::packing {

using Kind = Decision::Kind;

Packer::Packer(const Options& options, std::uint64_t chunks)
    : options_(options),
      shift_(std::countr_zero(options.chunk_bytes)),
      extents_(chunks, shift_),
      ranges_(extents_) {}

BlockId Packer::place_now(const Request& request) {
  const Bytes bytes = std::max(align_up(request.bytes, kUnit), kUnit);
  const ExtentId extent = extents_.best(bytes, request.tag);
  const Bytes fit = extent == kNone ? ~Bytes{0} : extents_[extent].bytes;
  if (fit != bytes && bytes >= options_.stitch_limit && ranges_.size() > 0) {
    const double reach = static_cast<double>(bytes) * options_.reuse_limit;
    const Bytes limit = reach < static_cast<double>(fit) ? static_cast<Bytes>(reach) + 1 : fit;
    const RangeId range = ranges_.find(bytes, limit, request.tag);
    if (range != kNone) return put_in_range(request, bytes, range);
  }
  return extent == kNone ? kNone : put(request, bytes, extent);
}

Decision Packer::place(const Request& request) {
  Decision decision;
  decision.block = place_now(request);
  if (decision.block != kNone) {
    decision.kind = Kind::kPlaced;
    return decision;
  }
  const Bytes bytes = std::max(align_up(request.bytes, kUnit), kUnit);
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
  return grow(request, bytes, options_.grow_exactly ? stitch.missing_chunks : 0);
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

Decision Packer::grow(const Request& request, Bytes bytes, std::uint64_t missing) {
  const Bytes chunk = options_.chunk_bytes;
  Decision decision;
  // The first vacancy that, with the free bytes before it, holds the request in one piece; and the
  // first that holds what a stitch lacks.
  std::uint64_t scattered_first = 0;
  bool scattered = false;
  for (ExtentId id = extents_.first(); id != kNone; id = extents_[id].after) {
    const Extent& vacancy = extents_[id];
    if (vacancy.state != ExtentState::kVacant) continue;
    const std::uint64_t room = std::min(vacancy.bytes >> shift_, request.growable);
    if (missing > 0 && missing <= room && !scattered) {
      scattered = true;
      scattered_first = vacancy.start >> shift_;
    }
    Bytes tail = 0;
    if (vacancy.before != kNone) {
      const Extent& before = extents_[vacancy.before];
      if (before.state == ExtentState::kFree &&
          (before.tag == request.tag || before.tag == kAnyStream)) {
        tail = before.bytes;
      }
    }
    const std::uint64_t whole = divide_up(bytes - std::min(tail, bytes), chunk);
    if (whole > room || (missing > 0 && whole > missing)) continue;
    std::uint64_t count = whole;
    if (allocations_ - last_growth_ < options_.burst_allocations) {
      // A hundredth of what there is at most, so that small programs stay small.
      count = std::max(count, std::min(options_.growth_bytes / chunk, chunks_ / 100));
    }
    decision.kind = Kind::kGrow;
    decision.first_chunk = vacancy.start >> shift_;
    decision.chunks = std::min(count, room);
    return decision;
  }
  if (scattered) {
    decision.kind = Kind::kGrow;
    decision.first_chunk = scattered_first;
    decision.chunks = missing;
  }
  return decision;
}

void Packer::grown(std::uint64_t first_chunk, std::uint64_t count, StreamTag tag) {
  extents_.populate(first_chunk, count, tag);
  chunks_ += count;
  last_growth_ = allocations_;
}

RangeId Packer::stitched(std::vector<Piece> pieces) { return ranges_.add(std::move(pieces)); }

BlockId Packer::place_in(const Request& request, RangeId range) {
  return put_in_range(request, std::max(align_up(request.bytes, kUnit), kUnit), range);
}

void Packer::release(BlockId id, std::uint32_t epoch) {
  Block& block = blocks_[id];
  if (block.range == kNone) {
    ranges_.wake(extents_.release(block.extent, block.tag, epoch));
  } else {
    ranges_.release(block.range, block.tag, epoch);
  }
  block.live = false;
  spare_.push_back(id);
  --live_blocks_;
}

BlockId Packer::new_block(const Request& request, Bytes bytes) {
  BlockId id;
  if (spare_.empty()) {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  } else {
    id = spare_.back();
    spare_.pop_back();
  }
  blocks_[id] = {.bytes = bytes, .requested = request.bytes, .tag = request.tag, .live = true};
  ++live_blocks_;
  ++allocations_;
  return id;
}

BlockId Packer::put(const Request& request, Bytes bytes, ExtentId extent) {
  const BlockId id = new_block(request, bytes);
  const std::uint64_t start = best_start(extents_[extent], bytes);
  blocks_[id].extent = extents_.take({start, bytes}, request.tag, id);
  blocks_[id].offset = start;
  return id;
}

BlockId Packer::put_in_range(const Request& request, Bytes bytes, RangeId range) {
  const BlockId id = new_block(request, bytes);
  ranges_.take(range, bytes, request.tag, id, allocations_);
  blocks_[id].range = range;
  blocks_[id].offset = ranges_[range].pieces.front().start;
  return id;
}

// At the beginning of the hole, unless more whole chunks stay free behind it at the end.
std::uint64_t Packer::best_start(const Extent& hole, Bytes bytes) const {
  const auto whole = [&](std::uint64_t from, std::uint64_t to) {
    const std::uint64_t first = divide_up(from, options_.chunk_bytes);
    const std::uint64_t last = to >> shift_;
    return last > first ? last - first : 0;
  };
  const std::uint64_t at_end = hole.end() - bytes;
  return whole(hole.start, at_end) > whole(hole.start + bytes, hole.end()) ? at_end : hole.start;
}

bool Packer::too_many_ranges() const {
  return ranges_.size() > options_.max_ranges || ranges_.chunks() > options_.range_limit >> shift_;
}

std::vector<RangeId> Packer::idle_ranges(const Run& run) const {
  std::vector<RangeId> idle;
  for (const RangeId id : ranges_.mapping(run.first_chunk, run.count)) {
    if (ranges_[id].state != StitchedRange::State::kUsed) idle.push_back(id);
  }
  return idle;
}

std::vector<Packer::Run> Packer::free_runs() const {
  std::vector<bool> held(extents_.chunks());  // mapped by a range in use, if only by its unused end
  for (RangeId id = 0; id < ranges_.ids(); ++id) {
    if (ranges_[id].state != StitchedRange::State::kUsed) continue;
    for (const Piece& piece : ranges_[id].pieces) {
      const std::uint64_t last = (piece.start + piece.bytes - 1) >> shift_;
      for (std::uint64_t chunk = piece.start >> shift_; chunk <= last; ++chunk) held[chunk] = true;
    }
  }
  std::vector<Run> runs;
  for (ExtentId id = extents_.first(); id != kNone; id = extents_[id].after) {
    const Extent& extent = extents_[id];
    if (extent.state != ExtentState::kFree) continue;
    const std::uint64_t to = extent.end() >> shift_;
    Run run;
    for (std::uint64_t chunk = divide_up(extent.start, options_.chunk_bytes); chunk < to; ++chunk) {
      if (!held[chunk]) {
        if (run.count++ == 0) run.first_chunk = chunk;
      } else if (run.count > 0) {
        runs.push_back(std::exchange(run, {}));
      }
    }
    if (run.count > 0) runs.push_back(run);
  }
  return runs;
}

}  // namespace penstock::policy::packing
