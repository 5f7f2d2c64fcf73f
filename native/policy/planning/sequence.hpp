// SPDX-License-Identifier: Apache-2.0
// What every policy asks of a sequence: is it valid, which steps use a page, and which *gaps* lie
// between consecutive uses.  A gap is the time between a use of a page and its next use,
// cyclically; keeping the page through a gap saves one load and costs a slot at every step strictly
// inside it. All that the planner decides is which gaps to keep.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/status.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

// kInvalidArgument when a step lists a page twice or a page is out of range.
Status validate(const Sequence& sequence);

// The uses of every page in step order; use i of the index is also gap i: from it to the page's
// next use.  Holds no reference to the sequence.
class UseIndex {
 public:
  using Id = std::size_t;  // of a use, and of the gap behind it

  explicit UseIndex(const Sequence& sequence)
      : steps_(static_cast<StepId>(sequence.steps.size())),
        offset_(sequence.page_bytes.size() + 1, 0),
        step_sizes_(sequence.steps.size()) {
    for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
      const std::vector<PageId>& pages = sequence.steps[step].pages;
      step_sizes_[step] = static_cast<std::int32_t>(pages.size());
      for (const PageId page : pages) ++offset_[nth(page) + 1];
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
        const std::size_t at = fill[nth(page)]++;
        page_[at] = page;
        step_[at] = static_cast<StepId>(step);
      }
    }
  }

  [[nodiscard]] StepId steps() const { return steps_; }
  [[nodiscard]] PageId pages() const { return static_cast<PageId>(offset_.size()) - 1; }
  [[nodiscard]] PageId used_pages() const { return used_pages_; }
  [[nodiscard]] Id uses() const { return step_.size(); }

  [[nodiscard]] Id begin(PageId page) const { return offset_[nth(page)]; }
  [[nodiscard]] Id end(PageId page) const { return offset_[nth(page) + 1]; }
  [[nodiscard]] PageId page(Id use) const { return page_[use]; }
  [[nodiscard]] StepId step(Id use) const { return step_[use]; }
  // The next use of the same page; a page used once is followed by itself.
  [[nodiscard]] Id next(Id use) const {
    return use + 1 == end(page_[use]) ? begin(page_[use]) : use + 1;
  }
  // The page's use at this step, end(page) when there is none.
  [[nodiscard]] Id find(PageId page, StepId step) const {
    const auto from = step_.begin() + static_cast<std::ptrdiff_t>(begin(page));
    const auto to = step_.begin() + static_cast<std::ptrdiff_t>(end(page));
    const auto found = std::lower_bound(from, to, step);
    return found != to && *found == step ? static_cast<Id>(found - step_.begin()) : end(page);
  }
  // Steps strictly inside the gap behind this use.
  [[nodiscard]] StepId gap_length(Id use) const {
    return (step_[next(use)] - step_[use] - 1 + steps_) % steps_;
  }
  // How many pages each step uses.
  [[nodiscard]] const std::vector<std::int32_t>& step_sizes() const { return step_sizes_; }

 private:
  StepId steps_;
  PageId used_pages_ = 0;
  std::vector<std::size_t> offset_;  // by page, one more at the end
  std::vector<PageId> page_;         // by use
  std::vector<StepId> step_;         // by use
  std::vector<std::int32_t> step_sizes_;
};

}  // namespace penstock::policy
