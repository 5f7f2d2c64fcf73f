// SPDX-License-Identifier: Apache-2.0
// What a pool moves that brings a page in when a step asks for it, to compare plans with.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/models/eviction.hpp"
#include "policy/planning/sequence.hpp"

namespace penstock::policy::testing {

using baseline::Evict;

struct Traffic {
  std::int64_t loads = 0;
  Bytes bytes_in = 0;
};

// One Traffic an iteration, from an empty pool; no step is larger than `slots`.  None of a step's
// pages leaves while it runs.  The iterations of FIFO and MIN may differ, for ever.
inline std::vector<Traffic> on_demand(const Sequence& sequence, std::int32_t slots, Evict which,
                                      int iterations) {
  const UseIndex index(sequence);
  baseline::Eviction rule(which);
  std::vector<bool> resident(sequence.page_bytes.size(), false);
  std::vector<Traffic> result(static_cast<std::size_t>(iterations));
  std::int64_t clock = 0;
  std::int64_t now = 0;
  for (Traffic& traffic : result) {
    for (StepId step = 0; step < index.steps(); ++step, ++now) {
      for (const PageId page : sequence.steps[static_cast<std::size_t>(step)].pages) {
        const auto at = static_cast<std::size_t>(page);
        if (!resident[at]) {
          if (std::ssize(sequence.page_bytes) > slots &&
              rule.resident() == static_cast<std::size_t>(slots)) {
            const PageId victim = rule.victim([&](PageId candidate) {
              return index.find(candidate, step) == index.end(candidate);
            });
            rule.left(victim);
            resident[static_cast<std::size_t>(victim)] = false;
          }
          resident[at] = true;
          ++traffic.loads;
          traffic.bytes_in += sequence.page_bytes[at];
        }
        rule.used(page, ++clock, now + index.gap_length(index.find(page, step)) + 1);
      }
    }
  }
  return result;
}

}  // namespace penstock::policy::testing
