// SPDX-License-Identifier: Apache-2.0
// Pages that say nothing of where a program stands, and are no part of its uses.  A page that joins
// group after group is one (a workspace, biases), until it has stayed away for long.  Pages of so
// few uses in turn that they are all like that are told by their number.  So is one of small blocks
// that come and go: which of them it holds is chance.  Pure; times are numbers of uses.
#pragma once

#include <cstdint>

namespace penstock::policy::residency {

// Chosen on recordings of training and generation under penstock run; not swept.
struct HotnessOptions {
  int hot = 16;              // returns at once that make a page hot
  std::uint64_t near = 3;    // uses apart at most, to have come back at once
  std::uint64_t far = 64;    // away for so long, it is hot no more
  std::int32_t share = 8;    // of the slots: more hot pages than one in so many tell after all
  std::int32_t blocks = 6;   // so many blocks in a page are many
  std::uint64_t calm = 512;  // uses since one came or went, after which they stay
};

struct Hotness {
  std::uint64_t joined = 0;   // when it last joined a group
  std::uint64_t changed = 0;  // when a block was last made or freed in it
  int returns = 0;            // how often it joined again at once, and never stayed away for long

  [[nodiscard]] bool hot(const HotnessOptions& o = {}) const { return returns >= o.hot; }

  // It joins a group now: by how much the number of hot pages changes.
  int joins(std::uint64_t now, const HotnessOptions& o = {}) {
    const bool before = hot(o);
    const std::uint64_t away = now - joined;
    if (away > o.far || (away > o.near && !before)) {
      returns = 0;
    } else if (away > 0) {
      ++returns;
    }
    joined = now;
    return hot(o) - before;
  }
  int forget(const HotnessOptions& o = {}) {
    const int change = hot(o) ? -1 : 0;
    returns = 0;
    return change;
  }
  [[nodiscard]] bool tells(std::uint64_t now, std::int32_t live, std::int32_t hot_pages,
                           std::int32_t slots, const HotnessOptions& o = {}) const {
    if (hot(o) && hot_pages <= slots / o.share && joined + o.far >= now) return false;
    return live < o.blocks || changed + o.calm < now;
  }
};

}  // namespace penstock::policy::residency
