// SPDX-License-Identifier: Apache-2.0
#include "policy/selection.hpp"

#include <algorithm>

#include "policy/occupancy.hpp"
#include "policy/residency.hpp"
#include "policy/streams.hpp"

namespace penstock::policy {
namespace {

using Gap = UseIndex::Id;

// The gaps that have a step inside, shortest first; the others are marked kept.
std::vector<Gap> by_length(const UseIndex& index, KeptGaps& kept) {
  std::vector<std::size_t> start(static_cast<std::size_t>(index.steps()) + 2, 0);
  for (Gap gap = 0; gap < index.uses(); ++gap) {
    const auto length = static_cast<std::size_t>(index.gap_length(gap));
    if (length == 0) kept[gap] = 1;
    ++start[length + 1];
  }
  const std::size_t free = start[1];
  for (std::size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
  std::vector<Gap> sorted(index.uses() - free);
  for (Gap gap = 0; gap < index.uses(); ++gap) {
    const auto length = static_cast<std::size_t>(index.gap_length(gap));
    if (length > 0) sorted[start[length]++ - free] = gap;
  }
  return sorted;
}

StepId inside(const UseIndex& index, Gap gap) { return (index.step(gap) + 1) % index.steps(); }

void keep(const UseIndex& index, Gap gap, Occupancy& taken, KeptGaps& kept) {
  taken.add(inside(index, gap), index.gap_length(gap), 1);
  kept[gap] = 1;
}

bool fits(const UseIndex& index, Gap gap, const Occupancy& taken, std::int32_t capacity) {
  return taken.max(inside(index, gap), index.gap_length(gap)) < capacity;
}

template <class Gaps>
void keep_what_fits(const UseIndex& index, const Gaps& gaps, std::int32_t capacity,
                    Occupancy& taken, KeptGaps& kept) {
  for (const Gap gap : gaps) {
    if (kept[gap] == 0 && fits(index, gap, taken, capacity)) keep(index, gap, taken, kept);
  }
}

}  // namespace

KeptGaps select_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity,
                     const std::vector<double>& weight) {
  KeptGaps kept(index.uses(), 0);
  const std::vector<Gap> gaps = by_length(index, kept);
  const auto first_long = std::partition_point(
      gaps.begin(), gaps.end(), [&](Gap gap) { return 2 * index.gap_length(gap) < index.steps(); });
  const std::vector<Gap> long_gaps(first_long, gaps.end());
  Occupancy taken(index.step_sizes());
  keep_what_fits(index, std::vector<Gap>(gaps.begin(), first_long), capacity, taken, kept);

  const Streams streams(sequence, index, long_gaps, taken.values(), capacity);
  std::vector<bool> streamed(index.uses(), false);
  for (const Gap gap : streams.choose(weight)) streamed[gap] = true;
  for (const Gap gap : long_gaps) {
    if (!streamed[gap]) keep(index, gap, taken, kept);
  }
  keep_what_fits(index, gaps, capacity, taken, kept);
  return kept;
}

KeptGaps select_lru_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity) {
  KeptGaps kept(index.uses(), 0);
  const std::vector<Gap> gaps = by_length(index, kept);
  const Result<std::vector<bool>> hits = replay_hits(sequence, capacity, Replacement::kLru, 2);
  if (!hits.ok()) return kept;
  // Walk the accesses in the order of the replay; a hit keeps the gap that ends there.
  std::vector<Gap> use(sequence.page_bytes.size());
  for (std::size_t page = 0; page < use.size(); ++page) {
    use[page] = index.begin(static_cast<PageId>(page));
  }
  Occupancy taken(index.step_sizes());
  std::size_t access = 0;
  for (const Step& step : sequence.steps) {
    for (const PageId page : step.pages) {
      const Gap here = use[static_cast<std::size_t>(page)]++;
      const Gap before = here == index.begin(page) ? index.end(page) - 1 : here - 1;
      if (hits.value()[access++] && kept[before] == 0) keep(index, before, taken, kept);
    }
  }
  keep_what_fits(index, gaps, capacity, taken, kept);
  return kept;
}

}  // namespace penstock::policy
