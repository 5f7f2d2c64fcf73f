// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/sequence.hpp"

#include <algorithm>
#include <string>

namespace penstock::policy {

Status validate(const Sequence& sequence) {
  const std::size_t pages = sequence.page_bytes.size();
  std::vector<std::size_t> seen(pages, 0);  // the last step, counted from 1, that listed the page
  for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
    for (const PageId page : sequence.steps[step].pages) {
      if (page < 0 || static_cast<std::size_t>(page) >= pages) {
        return invalid("step ", step, " uses page ", page, " of ", pages,
                       "; pages are numbered from 0");
      }
      std::size_t& last = seen[static_cast<std::size_t>(page)];
      if (last == step + 1) {
        return invalid("step ", step, " lists page ", page,
                       " twice; list every page of a step once");
      }
      last = step + 1;
    }
  }
  return {};
}

UseIndex::UseIndex(const Sequence& sequence)
    : steps_(static_cast<StepId>(sequence.steps.size())),
      offset_(sequence.page_bytes.size() + 1, 0),
      step_sizes_(sequence.steps.size()) {
  for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
    const std::vector<PageId>& pages = sequence.steps[step].pages;
    step_sizes_[step] = static_cast<std::int32_t>(pages.size());
    for (const PageId page : pages) ++offset_[static_cast<std::size_t>(page) + 1];
  }
  for (std::size_t page = 0; page + 1 < offset_.size(); ++page) {
    if (offset_[page + 1] > 0) ++used_pages_;
    offset_[page + 1] += offset_[page];
  }
  page_.resize(offset_.back());
  step_.resize(offset_.back());
  std::vector<std::size_t> fill(offset_.begin(), offset_.end() - 1);
  for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
    for (const PageId page : sequence.steps[step].pages) {
      const std::size_t at = fill[static_cast<std::size_t>(page)]++;
      page_[at] = page;
      step_[at] = static_cast<StepId>(step);
    }
  }
}

UseIndex::Id UseIndex::find(PageId page, StepId step) const {
  const auto from = step_.begin() + static_cast<std::ptrdiff_t>(begin(page));
  const auto to = step_.begin() + static_cast<std::ptrdiff_t>(end(page));
  const auto found = std::lower_bound(from, to, step);
  return found != to && *found == step ? static_cast<Id>(found - step_.begin()) : end(page);
}

}  // namespace penstock::policy
