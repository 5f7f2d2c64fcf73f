// SPDX-License-Identifier: Apache-2.0
// schedule(): draft plans in several ways, with less look-ahead where they move more
// than LRU would, and take the one that the time model likes best.
#include "policy/planning/schedule.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "policy/planning/lru.hpp"
#include "policy/planning/selection.hpp"
#include "policy/planning/sequence.hpp"
#include "policy/planning/slots.hpp"
#include "policy/planning/spans.hpp"
#include "policy/planning/stay_put.hpp"
#include "policy/planning/time_model.hpp"

namespace penstock::policy {
namespace {

// Plans within this share of each other are taken for equal, and the one with more look-ahead wins:
// the machine is less regular than the model.
constexpr double kMargin = 0.002;

// Where nothing was measured, a step is taken to compute for a tenth of the time that its pages
// take to copy, at a byte a millisecond: 26.4 ms of compute for 251 ms of copies on a forward of
// GPT-3 6.7B.
constexpr double kCompute = 0.1;
constexpr double kBytesPerMs = 1;
constexpr std::int32_t kMostAhead = 4;
// What more look-ahead has to gain: it costs bytes, and the model is not exact.
constexpr double kGain = 0.02;

std::vector<double> step_times(const Sequence& sequence, double compute) {
  std::vector<double> times;
  for (const Step& step : sequence.steps) {
    double bytes = 0;
    for (const PageId page : step.pages) {
      bytes += static_cast<double>(sequence.page_bytes[nth(page)]);
    }
    times.push_back(compute * bytes / kBytesPerMs);
  }
  return times;
}

// Complete, valid plans for one sequence and pool, each by one way of choosing what to keep:
// select gaps, join them into spans, give the spans slots.
class Drafts {
 public:
  // The sequence must be valid, outlive the object, and fit `slots`.
  Drafts(const Sequence& sequence, std::int32_t slots)
      : sequence_(sequence), index_(sequence), slots_(slots), smallest_(smallest_pool(sequence)) {}

  [[nodiscard]] bool everything_fits() const { return index_.used_pages() <= slots_; }
  [[nodiscard]] Plan keep_everything() const {
    return finish(join_gaps(index_, KeptGaps(index_.uses(), 1)));
  }

  // Pages that are used, left and used again in an iteration: without them select_gaps() and
  // select_pages() come to the same.
  [[nodiscard]] bool has_loops() const {
    for (PageId page = 0; page < index_.pages(); ++page) {
      int gaps = 0;
      for (UseIndex::Id use = index_.begin(page); use < index_.end(page); ++use) {
        if (index_.gap_length(use) > 0 && ++gaps > 1) return true;
      }
    }
    return false;
  }

  // By one way of selecting gaps, with `look_ahead` slots left for copies in flight, fewer where
  // the pool is small.
  using Select = KeptGaps (*)(const Sequence&, const UseIndex&, std::int32_t capacity);
  [[nodiscard]] Plan draft(std::int32_t look_ahead, Select select) const {
    const std::int32_t capacity = std::max(smallest_, slots_ - look_ahead);
    Spans spans = join_gaps(index_, select(sequence_, index_, capacity));
    // A slot earns its keep when two loads or more share it: with more slots than that, some page
    // would come back to a slot that no other has used.
    const std::int64_t idle = 2 * std::int64_t{stream_slots(spans)} - std::ssize(spans.loads);
    if (idle > 0 && capacity < slots_) {
      const auto more = std::min<std::int64_t>(slots_, capacity + idle);
      spans = join_gaps(index_, select(sequence_, index_, static_cast<std::int32_t>(more)));
    }
    return with_fixed_slots(std::move(spans));
  }

  // By select_lru_gaps(): never more loads than LRU, but where spans have to be split.
  [[nodiscard]] Plan like_lru() const {
    return with_fixed_slots(join_gaps(index_, select_lru_gaps(sequence_, index_, slots_)));
  }

 private:
  [[nodiscard]] Plan with_fixed_slots(Spans spans) const {
    assign_slots(index_, stream_slots(spans), spans.loads);
    stay_put(index_.steps(), spans.loads);
    return finish(std::move(spans));
  }

  [[nodiscard]] std::int32_t stream_slots(const Spans& spans) const {
    return slots_ - static_cast<std::int32_t>(spans.kept.size());
  }

  // Kept pages in the first slots, the loads behind them.
  [[nodiscard]] Plan finish(Spans spans) const {
    Plan plan;
    const auto kept = static_cast<SlotId>(spans.kept.size());
    for (SlotId slot = 0; slot < kept; ++slot) {
      plan.kept.push_back({spans.kept[nth(slot)], slot});
    }
    plan.loads = std::move(spans.loads);
    for (Load& load : plan.loads) load.slot += kept;
    keep_lone_pages(plan);
    std::vector<bool> used(nth(slots_), false);
    for (const Load& load : plan.loads) {
      plan.bytes_in += sequence_.page_bytes[nth(load.page)];
      used[nth(load.slot)] = true;
    }
    plan.stream_slots = static_cast<std::int32_t>(std::count(used.begin(), used.end(), true));
    return plan;
  }

  // A page that has a slot to itself need not be loaded again and again.
  void keep_lone_pages(Plan& plan) const {
    constexpr PageId kNone = -1;
    constexpr PageId kSeveral = -2;
    std::vector<PageId> in_slot(nth(slots_), kNone);
    std::vector<SlotId> of_page(sequence_.page_bytes.size(), kNone);
    const auto note = [](std::int32_t& entry, std::int32_t value) {
      entry = entry == kNone || entry == value ? value : kSeveral;
    };
    for (const Load& load : plan.loads) {
      note(in_slot[nth(load.slot)], load.page);
      note(of_page[nth(load.page)], load.slot);
    }
    const auto alone = [&](PageId page, SlotId slot) {
      return in_slot[nth(slot)] == page && of_page[nth(page)] == slot;
    };
    for (SlotId slot = 0; slot < slots_; ++slot) {
      const PageId page = in_slot[nth(slot)];
      if (page >= 0 && alone(page, slot)) plan.kept.push_back({page, slot});
    }
    std::erase_if(plan.loads, [&](const Load& load) { return alone(load.page, load.slot); });
  }

  const Sequence& sequence_;
  UseIndex index_;
  std::int32_t slots_;
  std::int32_t smallest_;
};

// The best plan so far.
class Choice {
 public:
  Choice(const Sequence& sequence, double compute, Bytes most)
      : sequence_(sequence), compute_ms_(step_times(sequence, compute)), most_(most) {}

  // Whether it is the best.
  bool offer(Plan plan, double margin = kMargin) {
    const bool allowed = plan.bytes_in <= most_;
    if (best_ && allowed < allowed_) return false;
    const double ms = simulate_plan(sequence_, compute_ms_, plan, kBytesPerMs).step_ms;
    // Where no plan is allowed the fewest bytes are what matters.
    const bool better = !best_ || allowed > allowed_ ||
                        (allowed ? ms < ms_ * (1 - margin) : plan.bytes_in < best_->bytes_in);
    if (!better) return false;
    best_ = std::move(plan);
    allowed_ = allowed;
    ms_ = ms;
    return true;
  }

  [[nodiscard]] bool allowed() const { return allowed_; }
  [[nodiscard]] Plan take() && { return std::move(*best_); }

 private:
  const Sequence& sequence_;
  std::vector<double> compute_ms_;
  Bytes most_;
  std::optional<Plan> best_;
  bool allowed_ = false;
  double ms_ = 0;
};

Status check_options(const Sequence& sequence, const ScheduleOptions& options) {
  PENSTOCK_TRY(validate(sequence));
  if (options.slots < 0 || options.look_ahead < 0) {
    return invalid("a plan needs slots and a look-ahead of 0 or more, not ", options.slots, " and ",
                   options.look_ahead);
  }
  if (const std::int32_t needed = smallest_pool(sequence); options.slots < needed) {
    return Status(Code::kOutOfMemory, "the largest step needs ", needed, " slots and the pool has ",
                  options.slots);
  }
  return {};
}

}  // namespace

std::int32_t smallest_pool(const Sequence& sequence) {
  std::size_t most = 0;
  for (const Step& step : sequence.steps) most = std::max(most, step.pages.size());
  return static_cast<std::int32_t>(most);
}

Result<Plan> schedule(const Sequence& sequence, const ScheduleOptions& options) {
  PENSTOCK_TRY(check_options(sequence, options));
  const Drafts drafts(sequence, options.slots);
  if (drafts.everything_fits()) return drafts.keep_everything();
  Choice choice(sequence, options.compute.value_or(kCompute),
                replay_lru(sequence, options.slots).bytes_in);
  for (std::int32_t ahead = options.look_ahead; !choice.allowed(); ahead /= 2) {
    choice.offer(drafts.draft(ahead, select_pages));
    if (drafts.has_loops()) choice.offer(drafts.draft(ahead, select_gaps));
    if (ahead == 0) break;
  }
  if (!choice.allowed()) choice.offer(drafts.like_lru());
  for (std::int32_t times = kMostAhead; options.compute && times > 1; times /= 2) {
    const std::int32_t ahead = std::min(options.slots / times, options.look_ahead) * times;
    if (choice.offer(drafts.draft(ahead, select_pages), kGain)) break;
  }
  return std::move(choice).take();
}

}  // namespace penstock::policy
