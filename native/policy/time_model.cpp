// SPDX-License-Identifier: Apache-2.0
#include "policy/time_model.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "policy/sequence.hpp"

namespace penstock::policy {
namespace {

constexpr int kWarmUp = 4;
constexpr int kMeasured = 4;

double copy_ms(const Sequence& sequence, PageId page, const Link& link) {
  return link.latency_ms +
         static_cast<double>(sequence.page_bytes[static_cast<std::size_t>(page)]) /
             link.bytes_per_ms;
}

// Runs a plan iteration by iteration.  A load's dependencies are steps before the first step of its
// own span, so one pass over the steps, issuing the loads of each before it, meets them in order.
class PlanClock {
 public:
  PlanClock(const Sequence& sequence, const Plan& plan, const Link& link)
      : sequence_(sequence),
        plan_(plan),
        link_(link),
        out_link_{link.out_bytes_per_ms > 0 ? link.out_bytes_per_ms : link.bytes_per_ms,
                  link.latency_ms},
        page_free_(sequence.page_bytes.size(), 0),
        dirty_(sequence.page_bytes.size(), false) {
    SlotId slots = static_cast<SlotId>(plan.turn.size());
    for (const Load& load : plan.loads) slots = std::max(slots, load.slot + 1);
    slot_free_.resize(static_cast<std::size_t>(slots), 0);
    occupant_.resize(static_cast<std::size_t>(slots), kNoPage);
    by_last_.resize(sequence.steps.size());
    for (std::size_t i = 0; i < plan.loads.size(); ++i) {
      by_last_[static_cast<std::size_t>(plan.loads[i].last)].push_back(i);
    }
    chunk_of_slot_.resize(slot_free_.size());
    std::iota(chunk_of_slot_.begin(), chunk_of_slot_.end(), std::size_t{0});
    chunk_of_load_.resize(plan.loads.size(), SIZE_MAX);
  }

  void iterate() {
    std::size_t next = 0;
    for (std::size_t step = 0; step < sequence_.steps.size(); ++step) {
      double ready = now_;
      for (; next < plan_.loads.size() && plan_.loads[next].first == static_cast<StepId>(step);
           ++next) {
        ready = std::max(ready, issue(next));
      }
      stall_ += ready - now_;
      now_ = ready + sequence_.steps[step].compute_ms;
      for (const PageId page : sequence_.steps[step].written) {
        dirty_[static_cast<std::size_t>(page)] = true;
      }
      for (const std::size_t load : by_last_[step]) release(load);
    }
    turn();
  }

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] double stall() const { return stall_; }
  [[nodiscard]] double busy() const { return busy_; }
  [[nodiscard]] double bytes_out() const { return bytes_out_; }

 private:
  static constexpr PageId kNoPage = -1;

  double issue(std::size_t i) {
    const Load& load = plan_.loads[i];
    const std::size_t chunk = chunk_of_slot_[static_cast<std::size_t>(load.slot)];
    write_back(chunk);
    const double start =
        std::max({link_free_, slot_free_[chunk], page_free_[static_cast<std::size_t>(load.page)]});
    occupant_[chunk] = load.page;
    const double duration = copy_ms(sequence_, load.page, link_);
    link_free_ = start + duration;
    busy_ += duration;
    chunk_of_load_[i] = chunk;
    return link_free_;
  }

  // What leaves the chunk goes out first if it has been written.
  void write_back(std::size_t chunk) {
    const PageId page = occupant_[chunk];
    if (page == kNoPage || !dirty_[static_cast<std::size_t>(page)]) return;
    dirty_[static_cast<std::size_t>(page)] = false;
    out_free_ = std::max(out_free_, slot_free_[chunk]) + copy_ms(sequence_, page, out_link_);
    bytes_out_ += static_cast<double>(sequence_.page_bytes[static_cast<std::size_t>(page)]);
    slot_free_[chunk] = page_free_[static_cast<std::size_t>(page)] = out_free_;
  }

  // The span that load i began is over.
  void release(std::size_t i) {
    const std::size_t chunk = chunk_of_load_[i];
    if (chunk == SIZE_MAX) return;  // wraps, and was not loaded before the first iteration
    slot_free_[chunk] = now_;
    page_free_[static_cast<std::size_t>(plan_.loads[i].page)] = now_;
  }

  void turn() {
    if (plan_.turn.empty()) return;
    std::vector<std::size_t> turned(chunk_of_slot_.size());
    for (std::size_t slot = 0; slot < turned.size(); ++slot) {
      turned[static_cast<std::size_t>(plan_.turn[slot])] = chunk_of_slot_[slot];
    }
    chunk_of_slot_ = std::move(turned);
  }

  const Sequence& sequence_;
  const Plan& plan_;
  const Link& link_;
  const Link out_link_;
  std::vector<double> page_free_;
  std::vector<bool> dirty_;        // by page
  std::vector<double> slot_free_;  // by chunk
  std::vector<PageId> occupant_;   // by chunk
  std::vector<std::vector<std::size_t>> by_last_;
  std::vector<std::size_t> chunk_of_slot_;
  std::vector<std::size_t> chunk_of_load_;
  double now_ = 0;
  double stall_ = 0;
  double busy_ = 0;
  double link_free_ = 0;
  double out_free_ = 0;
  double bytes_out_ = 0;
};

}  // namespace

Timing simulate_plan(const Sequence& sequence, const Plan& plan, const Link& link) {
  PlanClock clock(sequence, plan, link);
  for (int i = 0; i < kWarmUp; ++i) clock.iterate();
  const double start = clock.now();
  const double stall = clock.stall();
  const double busy = clock.busy();
  const double out = clock.bytes_out();
  for (int i = 0; i < kMeasured; ++i) clock.iterate();
  Timing timing;
  timing.step_ms = (clock.now() - start) / kMeasured;
  timing.stall_ms = (clock.stall() - stall) / kMeasured;
  timing.bytes_in = static_cast<double>(plan.bytes_in);
  timing.bytes_out = (clock.bytes_out() - out) / kMeasured;
  timing.link_busy = timing.step_ms > 0 ? (clock.busy() - busy) / kMeasured / timing.step_ms : 0;
  return timing;
}

Result<Timing> simulate_on_demand(const Sequence& sequence, std::int32_t slots,
                                  Replacement replacement, const Link& link) {
  PENSTOCK_ASSIGN(const std::vector<Traffic> all,
                  replay_iterations(sequence, slots, replacement, kWarmUp + kMeasured));
  Timing timing;
  double loads = 0;
  for (auto traffic = all.end() - kMeasured; traffic != all.end(); ++traffic) {
    timing.bytes_in += static_cast<double>(traffic->bytes_in) / kMeasured;
    loads += static_cast<double>(traffic->loads) / kMeasured;
  }
  timing.stall_ms = timing.bytes_in / link.bytes_per_ms + loads * link.latency_ms;
  timing.step_ms = timing.stall_ms;
  for (const Step& step : sequence.steps) timing.step_ms += step.compute_ms;
  timing.link_busy = timing.step_ms > 0 ? timing.stall_ms / timing.step_ms : 0;
  return timing;
}

double ideal_ms(const Sequence& sequence, std::int32_t slots, const Link& link) {
  const UseIndex index(sequence);
  std::vector<Bytes> sizes;
  for (PageId page = 0; page < index.pages(); ++page) {
    if (index.begin(page) != index.end(page)) {
      sizes.push_back(sequence.page_bytes[static_cast<std::size_t>(page)]);
    }
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>{});
  Bytes rest = 0;
  for (std::size_t i = static_cast<std::size_t>(std::max(0, slots)); i < sizes.size(); ++i) {
    rest += sizes[i];
  }
  double compute = 0;
  for (const Step& step : sequence.steps) compute += step.compute_ms;
  return std::max(compute, static_cast<double>(rest) / link.bytes_per_ms);
}

}  // namespace penstock::policy
