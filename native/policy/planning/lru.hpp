// SPDX-License-Identifier: Apache-2.0
// What LRU would load of a sequence: the most that a plan may move, and the plan to fall back on
// where all others move more.
//
// The pages of a step count as used together: none of them is evicted while the step runs.
#pragma once

#include <vector>

#include "policy/types.hpp"

namespace penstock::policy {

struct LruReplay {
  Bytes bytes_in = 0;
  std::vector<bool> hits;  // of every use, by step and in the order of the pages listed there
};

// The second iteration from an empty pool, which all later ones repeat: what LRU holds after a step
// depends on the last uses alone.  The sequence is valid, and no step larger than `slots`. O(uses).
LruReplay replay_lru(const Sequence& sequence, std::int32_t slots);

}  // namespace penstock::policy
