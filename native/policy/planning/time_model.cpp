// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/time_model.hpp"

#include <algorithm>

namespace penstock::policy {
namespace {

constexpr int kWarmUp = 4;
constexpr int kMeasured = 4;

// Runs a plan iteration by iteration.  A load's dependencies are steps before the first step of its
// own span, so one pass over the steps, issuing the loads of each before it, meets them in order.
class PlanClock {
 public:
  PlanClock(const Sequence& sequence, const std::vector<double>& compute_ms, const Plan& plan,
            double bytes_per_ms)
      : sequence_(sequence),
        compute_ms_(compute_ms),
        plan_(plan),
        bytes_per_ms_(bytes_per_ms),
        page_free_(sequence.page_bytes.size(), 0),
        dirty_(sequence.page_bytes.size(), false) {
    SlotId slots = 0;
    for (const Load& load : plan.loads) slots = std::max(slots, load.slot + 1);
    slot_free_.resize(nth(slots), 0);
    occupant_.resize(nth(slots), kNoPage);
    by_last_.resize(sequence.steps.size());
    for (std::size_t i = 0; i < plan.loads.size(); ++i) {
      by_last_[nth(plan.loads[i].last)].push_back(i);
    }
    issued_.resize(plan.loads.size(), false);
  }

  void iterate() {
    std::size_t next = 0;
    for (std::size_t step = 0; step < sequence_.steps.size(); ++step) {
      double ready = now_;
      for (; next < plan_.loads.size() && plan_.loads[next].first == static_cast<StepId>(step);
           ++next) {
        ready = std::max(ready, issue(next));
      }
      now_ = ready + compute_ms_[step];
      for (const PageId page : sequence_.steps[step].written) dirty_[nth(page)] = true;
      for (const std::size_t load : by_last_[step]) release(load);
    }
  }

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] double bytes_out() const { return bytes_out_; }

 private:
  static constexpr PageId kNoPage = -1;

  [[nodiscard]] double bytes(PageId page) const {
    return static_cast<double>(sequence_.page_bytes[nth(page)]);
  }

  double issue(std::size_t i) {
    const Load& load = plan_.loads[i];
    const auto slot = nth(load.slot);
    write_back(slot);
    const double start = std::max({link_free_, slot_free_[slot], page_free_[nth(load.page)]});
    occupant_[slot] = load.page;
    link_free_ = start + bytes(load.page) / bytes_per_ms_;
    issued_[i] = true;
    return link_free_;
  }

  // What leaves the slot goes out first if it has been written.
  void write_back(std::size_t slot) {
    const PageId page = occupant_[slot];
    if (page == kNoPage || !dirty_[nth(page)]) return;
    dirty_[nth(page)] = false;
    out_free_ = std::max(out_free_, slot_free_[slot]) + bytes(page) / bytes_per_ms_;
    bytes_out_ += bytes(page);
    slot_free_[slot] = page_free_[nth(page)] = out_free_;
  }

  // The span that load i began is over.
  void release(std::size_t i) {
    if (!issued_[i]) return;  // wraps, and was not loaded before the first iteration
    const Load& load = plan_.loads[i];
    slot_free_[nth(load.slot)] = now_;
    page_free_[nth(load.page)] = now_;
  }

  const Sequence& sequence_;
  const std::vector<double>& compute_ms_;
  const Plan& plan_;
  const double bytes_per_ms_;
  std::vector<double> page_free_;
  std::vector<bool> dirty_;        // by page
  std::vector<double> slot_free_;  // by slot
  std::vector<PageId> occupant_;   // by slot
  std::vector<std::vector<std::size_t>> by_last_;
  std::vector<bool> issued_;  // by load
  double now_ = 0;
  double link_free_ = 0;
  double out_free_ = 0;
  double bytes_out_ = 0;
};

}  // namespace

Timing simulate_plan(const Sequence& sequence, const std::vector<double>& compute_ms,
                     const Plan& plan, double bytes_per_ms) {
  PlanClock clock(sequence, compute_ms, plan, bytes_per_ms);
  for (int i = 0; i < kWarmUp; ++i) clock.iterate();
  const double start = clock.now();
  const double out = clock.bytes_out();
  for (int i = 0; i < kMeasured; ++i) clock.iterate();
  return {(clock.now() - start) / kMeasured, (clock.bytes_out() - out) / kMeasured};
}

}  // namespace penstock::policy
