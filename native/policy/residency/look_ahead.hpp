// SPDX-License-Identifier: Apache-2.0
// How many pages are brought in ahead of their use.  Each takes the room of one that could stay, so
// few are best while the link sets the pace.  Where work has to wait for pages although the link
// had rested before, with all brought in that was allowed, more would have come in time.  Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

namespace penstock::policy::residency {

// Simulated on recordings of eight programs within four budgets: 8, 16 and 32 for good are each up
// to 15 % slower than another for some of them; by the sum of all this is better than each.
struct LookAheadOptions {
  std::size_t least = 8;
  std::size_t most = 32;
  std::size_t up = 4;
  std::size_t steps = 4;  // one less after so many waits while the link did not rest
};

class LookAhead {
 public:
  explicit LookAhead(const LookAheadOptions& options = {})
      : options_(options), parts_(options.least * options.steps) {}

  [[nodiscard]] std::size_t pages() const { return parts_ / options_.steps; }
  // All that is allowed has come, and the link has nothing to do.
  void link_rests() { rested_ = true; }
  // Work waits for a page.
  void waited() {
    const std::size_t least = options_.least * options_.steps;
    const std::size_t most = options_.most * options_.steps;
    if (std::exchange(rested_, false)) {
      parts_ = std::min(parts_ + options_.up * options_.steps, most);
    } else {
      parts_ = std::max(parts_ - 1, least);
    }
  }

 private:
  LookAheadOptions options_;
  std::size_t parts_;
  bool rested_ = false;
};

}  // namespace penstock::policy::residency
