// SPDX-License-Identifier: Apache-2.0
// What every policy asks of a sequence: is it valid, which steps use a page, and which *gaps* lie
// between consecutive uses.  A gap is the time between a use of a page and its next use,
// cyclically; keeping the page through a gap saves one load and costs a slot at every step strictly
// inside it. All that the planner decides is which gaps to keep.
#pragma once

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

  explicit UseIndex(const Sequence& sequence);

  [[nodiscard]] StepId steps() const { return steps_; }
  [[nodiscard]] PageId pages() const { return static_cast<PageId>(offset_.size()) - 1; }
  [[nodiscard]] PageId used_pages() const { return used_pages_; }
  [[nodiscard]] Id uses() const { return step_.size(); }

  [[nodiscard]] Id begin(PageId page) const { return offset_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] Id end(PageId page) const { return offset_[static_cast<std::size_t>(page) + 1]; }
  [[nodiscard]] PageId page(Id use) const { return page_[use]; }
  [[nodiscard]] StepId step(Id use) const { return step_[use]; }
  // The next use of the same page; a page used once is followed by itself.
  [[nodiscard]] Id next(Id use) const {
    return use + 1 == end(page_[use]) ? begin(page_[use]) : use + 1;
  }
  // The page's use at this step, end(page) when there is none.
  [[nodiscard]] Id find(PageId page, StepId step) const;
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
