// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/plan_cursor.hpp"

#include <algorithm>

namespace penstock::engine {

void PlanCursor::adopt(policy::Plan plan, std::vector<UseId> order,
                       const policy::Sequence& sequence, std::int64_t begun) {
  plan_ = std::move(plan);
  order_ = std::move(order);
  begun_ = begun;
  next_load_ = 0;
  uses_of_page_.assign(sequence.page_bytes.size(), {});
  home_.assign(sequence.page_bytes.size(), kNoSlot);
  for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
    for (const PageId page : sequence.steps[step].pages) {
      uses_of_page_[static_cast<std::size_t>(page)].push_back(static_cast<policy::StepId>(step));
    }
  }
  for (const policy::Kept& kept : plan_.kept)
    home_[static_cast<std::size_t>(kept.page)] = kept.slot;
  for (const policy::Load& load : plan_.loads) {
    SlotId& home = home_[static_cast<std::size_t>(load.page)];
    if (home == kNoSlot) home = load.slot;
  }
}

void PlanCursor::drop() {
  plan_ = {};
  order_.clear();
  uses_of_page_.clear();
  home_.clear();
  begun_ = next_load_ = 0;
}

std::int64_t PlanCursor::begin(UseId use) {
  if (!planned()) return 0;
  const std::int64_t n = steps();
  for (std::int64_t ahead = 0; ahead < n; ++ahead) {
    if (at(begun_ + ahead) == use) {
      begun_ += ahead + 1;
      return ahead;
    }
  }
  return kForEver;
}

void PlanCursor::start_iteration() {
  if (!planned()) return;
  const std::int64_t n = steps();
  begun_ = (begun_ + n - 1) / n * n;
}

std::optional<PlanCursor::Next> PlanCursor::peek() const { return peek_after(0); }

std::optional<PlanCursor::Next> PlanCursor::peek_after(std::int64_t skip) const {
  const auto loads = static_cast<std::int64_t>(plan_.loads.size());
  if (loads == 0) return std::nullopt;
  const std::int64_t index = next_load_ + skip;
  const std::int64_t round = index / loads;
  const policy::Load& load = plan_.loads[static_cast<std::size_t>(index % loads)];
  const std::int64_t n = steps();
  Next next{load.page, load.slot, round * n + load.first, 0};
  next.last = next.first + (load.last - load.first + n) % n;
  if (next.first >= begun_ + n) return std::nullopt;
  return next;
}

std::int64_t PlanCursor::distance(PageId page) const {
  if (!planned()) return kForEver;
  const auto& uses = uses_of_page_[static_cast<std::size_t>(page)];
  if (uses.empty()) return kForEver;
  const std::int64_t n = steps();
  const auto here = static_cast<policy::StepId>(begun_ % n);
  const auto next = std::lower_bound(uses.begin(), uses.end(), here);
  return next != uses.end() ? *next - here : uses.front() + n - here;
}

}  // namespace penstock::engine
