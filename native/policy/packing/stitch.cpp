// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/stitch.hpp"

#include <algorithm>
#include <map>

namespace penstock::policy::packing {
namespace {

// Free memory as a stitch sees it.
struct Supply {
  std::vector<Piece> ends;        // free ends of chunks, the largest first
  std::vector<Piece> beginnings;  // free beginnings of chunks, the smallest first
  // Whole chunks by size, the largest first; of one size those in the largest holes first.
  std::map<Bytes, std::vector<Piece>, std::greater<>> chunks;
};

// Smaller rests of chunks are left to small blocks.
constexpr Bytes kSmallestEnd = 64 * kKiB;
// How many ends are tried.
constexpr std::size_t kEndsTried = 64;

Supply survey(const Extents& extents, StreamTag tag) {
  Supply supply;
  std::vector<Piece> runs;
  extents.each_free(std::min(kSmallestEnd, extents.slot_bytes()), tag, [&](ExtentId id) {
    const Extent& extent = extents[id];
    const std::uint64_t from = extents.boundary_after(extent.start);
    const std::uint64_t to = extents.boundary_before(extent.end());
    if (from > to) return true;  // within one chunk, and touches neither end of it
    if (from > extent.start) supply.ends.push_back({extent.start, from - extent.start});
    if (extent.end() > to) supply.beginnings.push_back({to, extent.end() - to});
    if (to > from) runs.push_back({from, to - from});
    return true;
  });
  std::ranges::sort(supply.ends, [](const Piece& a, const Piece& b) { return a.bytes > b.bytes; });
  std::ranges::sort(supply.beginnings,
                    [](const Piece& a, const Piece& b) { return a.bytes < b.bytes; });
  std::ranges::sort(runs, [](const Piece& a, const Piece& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.start < b.start;
  });
  for (const Piece& run : runs) {
    for (std::uint64_t at = run.start; at < run.end();) {
      const Piece chunk = extents.chunk_at(at);
      supply.chunks[chunk.bytes].push_back(chunk);
      at += chunk.bytes;
    }
  }
  return supply;
}

// An end (or none), whole chunks, and a beginning of a chunk (or none).
struct Choice {
  Piece end;
  Piece beginning;                  // where, and how much of it is needed
  std::vector<std::size_t> chunks;  // how many of each size, in the order of the supply
  Bytes missing = 0;
  Bytes loss = 0;
};

bool better(const Choice& a, const Choice& b) {
  return a.missing != b.missing ? a.missing < b.missing : a.loss < b.loss;
}

Choice with_end(const Supply& supply, const Piece& end, Bytes bytes) {
  Choice choice{.end = end, .beginning = {}, .chunks = {}};
  Bytes left = bytes - end.bytes;
  for (const auto& [size, chunks] : supply.chunks) {
    choice.chunks.push_back(std::min<std::size_t>(chunks.size(), left / size));
    left -= choice.chunks.back() * size;
  }
  if (left == 0) return choice;
  choice.missing = left;
  const auto fit = std::ranges::lower_bound(supply.beginnings, left, {}, &Piece::bytes);
  if (fit != supply.beginnings.end()) {
    choice.beginning = {fit->start, left};
    choice.loss = fit->bytes - left;
    choice.missing = 0;
  }
  // Or the beginning of the smallest chunk that is left over.  What remains of it is a beginning
  // for no one, but an end: less of a loss than it looks.
  std::size_t which = choice.chunks.size();
  for (auto size = supply.chunks.rbegin(); size != supply.chunks.rend(); ++size) {
    const std::size_t used = choice.chunks[--which];
    if (size->first < left || used == size->second.size()) continue;
    const Bytes loss = (size->first - left) / 2 + size->first / 8;
    if (choice.missing > 0 || loss < choice.loss) {
      choice.beginning = {size->second.back().start, left};
      choice.loss = loss;
      choice.missing = 0;
    }
    break;
  }
  return choice;
}

Choice choose(const Supply& supply, Bytes bytes) {
  Choice best = with_end(supply, {}, bytes);
  const std::size_t ends = std::min(supply.ends.size(), kEndsTried);
  for (std::size_t i = 0; i < ends; ++i) {
    if (supply.ends[i].bytes >= bytes) continue;
    Choice choice = with_end(supply, supply.ends[i], bytes);
    if (better(choice, best)) best = std::move(choice);
  }
  return best;
}

// The whole chunks of a choice; neighbours as one piece, so that a range has few of them.
std::vector<Piece> runs_of(const Supply& supply, const Choice& choice) {
  std::vector<Piece> chosen;
  std::size_t which = 0;
  for (const auto& [size, chunks] : supply.chunks) {
    const auto count = static_cast<std::ptrdiff_t>(choice.chunks[which++]);
    chosen.insert(chosen.end(), chunks.begin(), chunks.begin() + count);
  }
  std::ranges::sort(chosen, {}, &Piece::start);
  std::vector<Piece> runs;
  for (const Piece& chunk : chosen) {
    if (!runs.empty() && runs.back().end() == chunk.start) {
      runs.back().bytes += chunk.bytes;
    } else {
      runs.push_back(chunk);
    }
  }
  return runs;
}

}  // namespace

Stitch choose_stitch(const Extents& extents, Bytes bytes, StreamTag tag) {
  const Supply supply = survey(extents, tag);
  const Choice choice = choose(supply, bytes);
  Stitch stitch;
  stitch.missing = choice.missing;
  if (choice.missing > 0) return stitch;
  if (choice.end.bytes > 0) stitch.pieces.push_back(choice.end);
  for (const Piece& run : runs_of(supply, choice)) stitch.pieces.push_back(run);
  if (choice.beginning.bytes > 0) {
    // The range maps the whole chunk, so it may serve up to its end later; or up to its own first
    // piece, where that is the end of the same chunk.
    const Piece chunk = extents.chunk_at(choice.beginning.start);
    const std::uint64_t end = choice.end.start;
    const bool same = choice.end.bytes > 0 && end > chunk.start && end < chunk.end();
    stitch.pieces.push_back({chunk.start, same ? end - chunk.start : chunk.bytes});
  }
  return stitch;
}

}  // namespace penstock::policy::packing
