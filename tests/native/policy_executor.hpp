// SPDX-License-Identifier: Apache-2.0
// Carries a plan out on a pool of slots that hold page numbers, as early as the contract in
// schedule.hpp allows, and says what is not where it must be.  Shares no code with check().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/schedule.hpp"

namespace penstock::policy::testing {

class Executor {
 public:
  Executor(const Sequence& sequence, const Plan& plan, std::int32_t slots)
      : sequence_(sequence),
        plan_(plan),
        steps_(static_cast<std::int64_t>(sequence.steps.size())),
        held_(static_cast<std::size_t>(slots), -1),
        until_(static_cast<std::size_t>(slots), -1),
        page_until_(sequence.page_bytes.size(), -1),
        chunk_(static_cast<std::size_t>(slots)) {
    for (std::size_t slot = 0; slot < chunk_.size(); ++slot) chunk_[slot] = slot;
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
      const std::size_t chunk = chunk_[static_cast<std::size_t>(load.slot)];
      const auto page = static_cast<std::size_t>(load.page);
      if (until_[chunk] >= now || page_until_[page] >= now) return;
      held_[chunk] = load.page;
      until_[chunk] = page_until_[page] = next_first() + (load.last - load.first + steps_) % steps_;
      if (++next_ < plan_.loads.size()) continue;
      next_ = 0;
      ++round_;
      turn();
    }
  }

  void turn() {
    if (plan_.turn.empty()) return;
    std::vector<std::size_t> turned(chunk_.size());
    for (std::size_t slot = 0; slot < chunk_.size(); ++slot) {
      turned[static_cast<std::size_t>(plan_.turn[slot])] = chunk_[slot];
    }
    chunk_ = turned;
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
  std::vector<PageId> held_;         // by chunk
  std::vector<std::int64_t> until_;  // by chunk: the last step of its latest span
  std::vector<std::int64_t> page_until_;
  std::vector<std::size_t> chunk_;  // by slot
  std::size_t next_ = 0;
  std::int64_t round_ = 0;
};

}  // namespace penstock::policy::testing
