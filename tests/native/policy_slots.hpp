// SPDX-License-Identifier: Apache-2.0
// What of a plan's loads overlaps, and how far apart those of one slot are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "policy/planning/schedule.hpp"

namespace penstock::policy::testing {

// The most spans that cover a step.
inline std::int32_t most_overlapping(const std::vector<Load>& loads, StepId steps) {
  std::vector<std::int32_t> change(static_cast<std::size_t>(steps) + 1, 0);
  for (const Load& load : loads) {
    ++change[static_cast<std::size_t>(load.first)];
    --change[static_cast<std::size_t>(load.last) + 1];
    if (load.last < load.first) ++change[0];
  }
  std::int32_t most = 0;
  std::int32_t now = 0;
  for (const std::int32_t c : change) most = std::max(most, now += c);
  return most;
}

// The least distance in load order between two consecutive loads of one slot, cyclically.
inline std::int64_t least_distance(const std::vector<Load>& loads) {
  const std::int64_t count = std::ssize(loads);
  std::map<SlotId, std::int64_t> latest;  // as if an iteration had gone before
  for (std::int64_t i = 0; i < count; ++i) {
    latest[loads[static_cast<std::size_t>(i)].slot] = i - count;
  }
  std::int64_t least = count;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t& before = latest[loads[static_cast<std::size_t>(i)].slot];
    least = std::min(least, i - before);
    before = i;
  }
  return least;
}

}  // namespace penstock::policy::testing
