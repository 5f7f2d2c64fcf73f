// SPDX-License-Identifier: Apache-2.0
// Carries a plan out on a pool of slots that hold page numbers, as early as the contract in
// schedule.hpp allows, and says what is not where it must be.  Shares no code with check().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/planning/schedule.hpp"

namespace penstock::policy::testing {

class Executor {
 public:
  Executor(const Sequence& sequence, const Plan& plan, std::int32_t slots)
      : sequence_(sequence),
        plan_(plan),
        steps_(static_cast<std::int64_t>(sequence.steps.size())),
        held_(static_cast<std::size_t>(slots), -1),
        until_(static_cast<std::size_t>(slots), -1),
        page_until_(sequence.page_bytes.size(), -1) {
    for (const Kept& kept : plan.kept) held_[static_cast<std::size_t>(kept.slot)] = kept.page;
  }

  // Runs the iteration so often; empty when all went well.  The first one finds the pages missing
  // whose spans wrap, and is not judged.
  std::string run(int iterations) {
    for (int iteration = 0; iteration < iterations; ++iteration) {
      for (std::int64_t step = 0; step < steps_; ++step) {
        const std::int64_t now = iteration * steps_ + step;
        issue_what_can_be(now);
        if (next_first() <= now) return "step " + std::to_string(now) + ": a load is stuck";
        if (iteration == 0) continue;
        for (const PageId page : sequence_.steps[static_cast<std::size_t>(step)].pages) {
          if (!holds(page)) {
            return "step " + std::to_string(now) + ": page " + std::to_string(page) + " is missing";
          }
        }
      }
    }
    return {};
  }

 private:
  [[nodiscard]] std::int64_t next_first() const {
    if (plan_.loads.empty()) return INT64_MAX;
    return round_ * steps_ + plan_.loads[next_].first;
  }

  // Before step `now`: in order, each load whose slot's former span and whose page's former span
  // have ended.
  void issue_what_can_be(std::int64_t now) {
    while (!plan_.loads.empty() && next_first() < now + steps_) {
      const Load& load = plan_.loads[next_];
      const auto slot = static_cast<std::size_t>(load.slot);
      const auto page = static_cast<std::size_t>(load.page);
      if (until_[slot] >= now || page_until_[page] >= now) return;
      held_[slot] = load.page;
      until_[slot] = page_until_[page] = next_first() + (load.last - load.first + steps_) % steps_;
      if (++next_ < plan_.loads.size()) continue;
      next_ = 0;
      ++round_;
    }
  }

  [[nodiscard]] bool holds(PageId page) const {
    for (const PageId held : held_) {
      if (held == page) return true;
    }
    return false;
  }

  const Sequence& sequence_;
  const Plan& plan_;
  std::int64_t steps_;
  std::vector<PageId> held_;         // by slot
  std::vector<std::int64_t> until_;  // by slot: the last step of its latest span
  std::vector<std::int64_t> page_until_;
  std::size_t next_ = 0;
  std::int64_t round_ = 0;
};

}  // namespace penstock::policy::testing
