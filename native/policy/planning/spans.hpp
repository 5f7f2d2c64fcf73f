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

inline Spans join_gaps(const UseIndex& index, const KeptGaps& kept) {
  Spans spans;
  std::vector<std::vector<Load>> by_first(nth(index.steps()));
  std::size_t loads = 0;
  for (PageId page = 0; page < index.pages(); ++page) {
    const UseIndex::Id begin = index.begin(page);
    const UseIndex::Id end = index.end(page);
    if (begin == end) continue;
    const std::size_t before = loads;
    for (UseIndex::Id use = begin; use < end; ++use) {
      if (kept[use == begin ? end - 1 : use - 1] != 0) continue;  // not the first of its span
      UseIndex::Id last = use;
      while (kept[last] != 0) last = index.next(last);
      const StepId first = index.step(use);
      by_first[nth(first)].push_back({page, first, index.step(last), kAnySlot});
      ++loads;
    }
    if (loads == before) spans.kept.push_back(page);
  }
  spans.loads.reserve(loads);
  for (const std::vector<Load>& step : by_first) {
    spans.loads.insert(spans.loads.end(), step.begin(), step.end());
  }
  return spans;
}

}  // namespace penstock::policy
