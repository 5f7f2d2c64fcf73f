// SPDX-License-Identifier: Apache-2.0
// Replacement policies that look at one access at a time, to compare with: LRU (what managed memory
// does), FIFO (PUMP), and Belady's MIN (the fewest loads any policy can do on a known sequence;
// L. A. Belady, IBM Systems Journal 5(2), 1966).
//
// The pages of a step count as used together: none of them is evicted while the step runs, and MIN
// compares next uses by step.  MIN knows the future, the following iterations included.  Ties go
// to the higher page number.  O(log n) an access; nothing here is shared, so any thread may call.
#pragma once

#include <vector>

#include "base/status.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

enum class Replacement { kLru, kFifo, kBelady };

struct Traffic {
  std::int64_t uses = 0;   // page accesses
  std::int64_t loads = 0;  // of which not resident
  Bytes bytes_in = 0;
};

// Run the iteration `iterations` times from an empty pool of `slots` and return the traffic of the
// last one.  LRU repeats itself from the second iteration on (what it holds after a step depends on
// the last uses alone).  FIFO and MIN may alternate with a period of several iterations: MIN loads
// 1 and 2 pages in turn for three pages in two slots.  Average over replay_iterations() there.
// kOutOfMemory when a step needs more slots than there are.
Result<Traffic> replay(const Sequence& sequence, std::int32_t slots, Replacement replacement,
                       int iterations = 4);

// One Traffic an iteration.
Result<std::vector<Traffic>> replay_iterations(const Sequence& sequence, std::int32_t slots,
                                               Replacement replacement, int iterations);

// Of the last iteration: for every access in the order of the steps and of the pages listed in
// them, whether the page was resident.  The time model and the planner need to know which.
Result<std::vector<bool>> replay_hits(const Sequence& sequence, std::int32_t slots,
                                      Replacement replacement, int iterations = 4);

}  // namespace penstock::policy
