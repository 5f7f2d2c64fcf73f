// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/stitch.hpp"

#include <algorithm>

namespace penstock::policy::packing {
namespace {

// Free memory as a stitch sees it.
struct Supply {
  std::vector<Piece> ends;        // free ends of chunks, the largest first
  std::vector<Piece> beginnings;  // free beginnings of chunks, the smallest first
  std::vector<Piece> runs;        // whole chunks
  std::uint64_t chunks = 0;       // in all runs
};

// Smaller rests of chunks are left to small blocks.
constexpr Bytes kSmallestEnd = 64 * kKiB;
// How many ends are tried.
constexpr std::size_t kEndsTried = 64;

Supply survey(const Extents& extents, StreamTag tag) {
  Supply supply;
  const Bytes chunk = extents.chunk_bytes();
  extents.each_free(kSmallestEnd, tag, [&](ExtentId id) {
    const Extent& extent = extents[id];
    const std::uint64_t from = align_up(extent.start, chunk);
    const std::uint64_t to = align_down(extent.end(), chunk);
    if (from > to) return true;  // within one chunk, and touches neither end of it
    if (from > extent.start) supply.ends.push_back({extent.start, from - extent.start});
    if (extent.end() > to) supply.beginnings.push_back({to, extent.end() - to});
    if (to > from) {
      supply.runs.push_back({from, to - from});
      supply.chunks += (to - from) / chunk;
    }
    return true;
  });
  std::ranges::sort(supply.ends, [](const Piece& a, const Piece& b) { return a.bytes > b.bytes; });
  std::ranges::sort(supply.beginnings,
                    [](const Piece& a, const Piece& b) { return a.bytes < b.bytes; });
  std::ranges::sort(supply.runs, [](const Piece& a, const Piece& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.start < b.start;
  });
  return supply;
}

// An end (or none), so many whole chunks, and a beginning (or none).
struct Choice {
  Piece end;
  Piece beginning;
  std::uint64_t chunks = 0;
  Bytes loss = ~Bytes{0};
};

Choice with_end(const Supply& supply, const Piece& end, Bytes bytes, Bytes chunk) {
  Choice choice{end, {}, (bytes - end.bytes) / chunk, 0};
  const Bytes rest = (bytes - end.bytes) % chunk;
  if (rest == 0) return choice;
  const auto fit = std::ranges::lower_bound(supply.beginnings, rest, {}, &Piece::bytes);
  if (fit != supply.beginnings.end()) {
    choice.beginning = {fit->start, rest};
    choice.loss = fit->bytes - rest;
  } else {
    ++choice.chunks;
    // The rest of a whole chunk is a beginning for others: less of a loss than it looks.
    choice.loss = chunk - rest + chunk / 4;
  }
  return choice;
}

Choice choose(const Supply& supply, Bytes bytes, Bytes chunk) {
  Choice best = with_end(supply, {}, bytes, chunk);
  const std::size_t ends = std::min(supply.ends.size(), kEndsTried);
  for (std::size_t i = 0; i < ends; ++i) {
    if (supply.ends[i].bytes >= bytes) continue;
    const Choice choice = with_end(supply, supply.ends[i], bytes, chunk);
    const bool feasible = choice.chunks <= supply.chunks;
    const bool best_feasible = best.chunks <= supply.chunks;
    if (feasible != best_feasible ? feasible : choice.loss < best.loss) best = choice;
  }
  return best;
}

}  // namespace

Stitch choose_stitch(const Extents& extents, Bytes bytes, StreamTag tag) {
  const Bytes chunk = extents.chunk_bytes();
  const Supply supply = survey(extents, tag);
  const Choice choice = choose(supply, bytes, chunk);
  Stitch stitch;
  if (choice.chunks > supply.chunks) {
    stitch.missing_chunks = choice.chunks - supply.chunks;
    return stitch;
  }
  if (choice.end.bytes > 0) stitch.pieces.push_back(choice.end);
  std::uint64_t left = choice.chunks;
  for (const Piece& run : supply.runs) {
    if (left == 0) break;
    const std::uint64_t taken = std::min(left, run.bytes / chunk);
    stitch.pieces.push_back({run.start, taken * chunk});
    left -= taken;
  }
  if (choice.beginning.bytes > 0) {
    // The range maps the whole chunk, so it may serve up to its end later; or up to its own first
    // piece, where that is the end of the same chunk.
    const std::uint64_t from = choice.beginning.start;
    const bool same = choice.end.bytes > 0 && align_down(choice.end.start, chunk) == from;
    stitch.pieces.push_back({from, same ? choice.end.start - from : chunk});
  }
  return stitch;
}

}  // namespace penstock::policy::packing
