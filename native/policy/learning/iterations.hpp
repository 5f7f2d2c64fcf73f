// SPDX-License-Identifier: Apache-2.0
// The iterations of a whole sequence of uses that is known to its end: where it repeats itself, and
// how often.  Pure.  Period (period.hpp) proposes how long an iteration is, as it does while a
// program runs; which of its proposals explains most of the sequence is known only afterwards.
#pragma once

#include <cstddef>
#include <span>

#include "policy/learning/period.hpp"

namespace penstock::policy::learning {

struct Iterations {
  std::size_t first = 0;   // the use that the first one begins with
  std::size_t period = 0;  // uses in each; 0: nothing repeats itself
  std::size_t count = 0;   // whole ones, one right after the other
};

// The longest stretch that repeats itself with one period; of periods that explain nearly as much,
// the shortest.
Iterations find_iterations(std::span<const Period::Use> uses);

}  // namespace penstock::policy::learning
