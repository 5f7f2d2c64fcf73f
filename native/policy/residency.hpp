// SPDX-License-Identifier: Apache-2.0
// Replacement policies that look at one access at a time, to compare with: LRU (what managed memory
// does), FIFO (PUMP), and Belady's MIN (the fewest loads any policy can do on a known sequence;
// L. A. Belady, IBM Systems Journal 5(2), 1966).
#pragma once

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
// last one, which is the steady state for 3 or more.  kOutOfMemory when a step needs more slots
// than there are.  Pages of the running step are never evicted.
Result<Traffic> replay(const Sequence& sequence, std::int32_t slots, Replacement replacement,
                       int iterations = 4);

}  // namespace penstock::policy
