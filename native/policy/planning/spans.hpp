// SPDX-License-Identifier: Apache-2.0
// From kept gaps to kept pages and spans: a page all of whose gaps are kept stays; of another,
// every run of uses joined by kept gaps is one span and one load.
#pragma once

#include <vector>

#include "policy/planning/schedule.hpp"
#include "policy/planning/selection.hpp"

namespace penstock::policy {

struct Spans {
  std::vector<PageId> kept;  // ascending
  std::vector<Load> loads;   // without slots, by first step, then page
};

Spans join_gaps(const UseIndex& index, const KeptGaps& kept);

}  // namespace penstock::policy
