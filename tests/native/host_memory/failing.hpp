// SPDX-License-Identifier: Apache-2.0
// A scenario with each of its allocations made to fail in turn, until it runs without a failure.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "engine_scenarios.hpp"
#include "fault_tally.hpp"

namespace penstock::testing {

// Until one of this thread fails; 0: none will.
extern thread_local std::int64_t allocations_left;

inline void check_nothing_is_left() {
  const driver::LiveCounts& live = scenarios::left;
  CHECK(live.ranges == 0);
  CHECK(live.chunks == 0);
  CHECK(live.mappings == 0);
  CHECK(live.host_allocations == 0);
  CHECK(live.managed_allocations == 0);
  CHECK(live.streams == 0);
  CHECK(live.events == 0);
}

// Runs `scenario()` for each, of many for every fifth unless PENSTOCK_EVERY_ALLOCATION is set; what
// it makes it takes away.  It says how many of its calls were refused: none without a failure.
template <class Scenario>
void fail_each_allocation(Scenario&& scenario, int most_refused = 2) {
  const bool every = std::getenv("PENSTOCK_EVERY_ALLOCATION") != nullptr;
  std::int64_t n = 0;
  std::int64_t runs = 0;
  for (bool failed = true; failed;) {
    n += n < 200 || every ? 1 : 5;
    ++runs;
    CAPTURE(n);
    allocations_left = n;
    const int refused = scenario();
    failed = allocations_left == 0;
    allocations_left = 0;
    const Shelter shelter;
    check_nothing_is_left();
    CHECK(refused <= (failed ? most_refused : 0));
  }
  CHECK(n > 10);
  tell_faults("allocations", runs - 1);  // in the last one none failed
}

}  // namespace penstock::testing
