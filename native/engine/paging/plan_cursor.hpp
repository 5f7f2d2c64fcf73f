// SPDX-License-Identifier: Apache-2.0
// Where the program stands in the plan.  Steps are counted from the plan's adoption and go on
// across iterations: step g is step g mod n of the sequence.  Loads are handed out in the plan's
// order, at most one iteration ahead of the program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/paging/recorder.hpp"
#include "policy/planning/schedule.hpp"

namespace penstock::engine {

inline constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

class PlanCursor {
 public:
  struct Next {
    PageId page;
    SlotId slot;
    std::int64_t first;  // the step that needs it
    std::int64_t last;   // the step that ends its stay
  };

  // begun: how many steps of its first iteration are over already.
  void adopt(policy::Plan plan, std::vector<UseId> order, const policy::Sequence& sequence,
             std::int64_t begun = 0) {
    PlanCursor made;  // whole, or what was there stays
    made.plan_ = std::move(plan);
    made.order_ = std::move(order);
    made.begun_ = begun;
    made.uses_of_page_.assign(sequence.page_bytes.size(), {});
    made.home_.assign(sequence.page_bytes.size(), kNoSlot);
    for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
      for (const PageId page : sequence.steps[step].pages) {
        auto& uses = made.uses_of_page_[nth(page)];
        uses.push_back(static_cast<policy::StepId>(step));
      }
    }
    for (const policy::Kept& kept : made.plan_.kept) made.home_[nth(kept.page)] = kept.slot;
    for (const policy::Load& load : made.plan_.loads) {
      SlotId& home = made.home_[nth(load.page)];
      if (home == kNoSlot) home = load.slot;
    }
    *this = std::move(made);
  }
  void drop() { *this = {}; }

  [[nodiscard]] bool planned() const { return !order_.empty(); }
  [[nodiscard]] const policy::Plan& plan() const { return plan_; }
  [[nodiscard]] const std::vector<UseId>& order() const { return order_; }

  // Steps begun so far.
  [[nodiscard]] std::int64_t begun() const { return begun_; }
  // A use begins, and the cursor moves on to it: how many steps it left out, 0 when it was the
  // expected one.  kForEver when the plan has no such use: then the cursor stays where it is.
  std::int64_t begin(UseId use) {
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
  // The program starts an iteration anew: go on to the next time that the plan is at this step.
  void start_at(std::int64_t step) {
    if (!planned()) return;
    const std::int64_t n = steps();
    begun_ += (step - begun_ % n + n) % n;
  }

  [[nodiscard]] std::optional<Next> peek() const { return peek_after(0); }
  [[nodiscard]] std::optional<Next> peek_after(std::int64_t skip) const {
    const auto loads = static_cast<std::int64_t>(plan_.loads.size());
    if (loads == 0) return std::nullopt;
    const std::int64_t index = next_load_ + skip;
    const std::int64_t round = index / loads;
    const policy::Load& load = plan_.loads[nth(index % loads)];
    const std::int64_t n = steps();
    Next next{load.page, load.slot, round * n + load.first, 0};
    next.last = next.first + (load.last - load.first + n) % n;
    if (next.first >= begun_ + n) return std::nullopt;
    return next;
  }
  void pop() { ++next_load_; }

  // Steps until `page` is needed again, kForEver when the plan does not know it.
  [[nodiscard]] std::int64_t distance(PageId page) const {
    if (!planned()) return kForEver;
    const auto& uses = uses_of_page_[nth(page)];
    if (uses.empty()) return kForEver;
    const std::int64_t n = steps();
    const auto here = static_cast<policy::StepId>(begun_ % n);
    const auto next = std::lower_bound(uses.begin(), uses.end(), here);
    return next != uses.end() ? *next - here : uses.front() + n - here;
  }
  // The slot that the plan has for a page, kNoSlot when it has none.
  [[nodiscard]] SlotId home(PageId page) const { return home_[nth(page)]; }

 private:
  [[nodiscard]] UseId at(std::int64_t step) const { return order_[nth(step % steps())]; }
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(order_.size()); }

  policy::Plan plan_;
  std::vector<UseId> order_;
  std::vector<std::vector<policy::StepId>> uses_of_page_;
  std::vector<SlotId> home_;  // the slot of a page's first load, or of the kept page
  std::int64_t begun_ = 0;
  std::int64_t next_load_ = 0;
};

}  // namespace penstock::engine
