// SPDX-License-Identifier: Apache-2.0
// schedule(): select gaps, join them into spans, give the spans slots; and again with less
// look-ahead, or with what LRU would keep, until the plan is no worse than LRU.
#include "policy/schedule.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "policy/residency.hpp"
#include "policy/selection.hpp"
#include "policy/sequence.hpp"
#include "policy/slots.hpp"
#include "policy/spans.hpp"

namespace penstock::policy {
namespace {

// In proportion to the time of the steps where it is known, because copies hide behind it; else to
// their size.
std::vector<double> step_weights(const Sequence& sequence) {
  std::vector<double> weight;
  bool known = true;
  for (const Step& step : sequence.steps) {
    known = known && (step.compute_ms > 0 || step.pages.empty());
    weight.push_back(static_cast<double>(step.pages.size()));
  }
  if (!known) return weight;
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = sequence.steps[i].compute_ms;
  return weight;
}

class Planner {
 public:
  Planner(const Sequence& sequence, std::int32_t slots)
      : sequence_(sequence),
        index_(sequence),
        slots_(slots),
        smallest_(smallest_pool(sequence)),
        weight_(step_weights(sequence)) {}

  [[nodiscard]] bool everything_fits() const { return index_.used_pages() <= slots_; }

  [[nodiscard]] Plan keep_everything() const {
    return *finish(join_gaps(index_, KeptGaps(index_.uses(), 1)), SlotAssignment{});
  }

  // With room for copies in flight: the capacity is what the pages may take, the rest of the pool
  // is for look-ahead.  The spans are shortened until their arcs can be coloured.
  [[nodiscard]] Plan plan(std::int32_t look_ahead) const {
    std::int32_t capacity = std::max(smallest_, slots_ - look_ahead);
    for (std::int32_t less = 1;; less *= 2) {
      auto found = with_fixed_slots(select_gaps(sequence_, index_, capacity, weight_));
      if (found) return std::move(*found);
      if (capacity == smallest_) break;
      capacity = std::max(smallest_, capacity - less);
    }
    return *with_fixed_slots(KeptGaps(index_.uses(), 0));
  }

  [[nodiscard]] std::optional<Plan> plan_like_lru(bool may_turn) const {
    const KeptGaps kept = select_lru_gaps(sequence_, index_, slots_);
    std::optional<Plan> plan = with_fixed_slots(kept);
    return plan || !may_turn ? plan : with_turning_slots(kept);
  }

  // Copies that can be under way, or waiting in their slot, while any one step runs.
  [[nodiscard]] std::int64_t room_ahead(const Plan& plan) const {
    return least_distance(plan.loads) - most_overlapping(plan.loads, index_.steps());
  }

 private:
  [[nodiscard]] std::optional<Plan> with_fixed_slots(const KeptGaps& kept) const {
    Spans spans = join_gaps(index_, kept);
    const std::optional<SlotAssignment> slots =
        assign_slots(spans.loads, index_.steps(), stream_slots(spans));
    if (!slots) return std::nullopt;
    return finish(std::move(spans), *slots);
  }

  [[nodiscard]] std::optional<Plan> with_turning_slots(const KeptGaps& kept) const {
    Spans spans = join_gaps(index_, kept);
    const SlotAssignment slots =
        assign_turning_slots(spans.loads, index_.steps(), stream_slots(spans));
    return finish(std::move(spans), slots);
  }

  [[nodiscard]] std::int32_t stream_slots(const Spans& spans) const {
    return slots_ - static_cast<std::int32_t>(spans.kept.size());
  }

  // Kept pages in the first slots, the loads behind them.
  [[nodiscard]] std::optional<Plan> finish(Spans spans, const SlotAssignment& slots) const {
    Plan plan;
    const auto kept = static_cast<SlotId>(spans.kept.size());
    for (SlotId slot = 0; slot < kept; ++slot) {
      plan.kept.push_back({spans.kept[static_cast<std::size_t>(slot)], slot});
    }
    plan.loads = std::move(spans.loads);
    for (std::size_t i = 0; i < plan.loads.size(); ++i) plan.loads[i].slot = kept + slots.slot[i];
    if (!slots.turn.empty()) {
      for (SlotId slot = 0; slot < kept; ++slot) plan.turn.push_back(slot);
      for (const SlotId to : slots.turn) plan.turn.push_back(kept + to);
    } else {
      keep_lone_pages(plan);
    }
    std::vector<bool> used(static_cast<std::size_t>(slots_), false);
    for (const Load& load : plan.loads) {
      plan.bytes_in += sequence_.page_bytes[static_cast<std::size_t>(load.page)];
      used[static_cast<std::size_t>(load.slot)] = true;
    }
    plan.stream_slots = static_cast<std::int32_t>(std::count(used.begin(), used.end(), true));
    return plan;
  }

  // A page that has a slot to itself need not be loaded again and again.
  void keep_lone_pages(Plan& plan) const {
    constexpr PageId kNone = -1;
    constexpr PageId kSeveral = -2;
    std::vector<PageId> in_slot(static_cast<std::size_t>(slots_), kNone);
    std::vector<SlotId> of_page(sequence_.page_bytes.size(), kNone);
    const auto note = [](std::int32_t& entry, std::int32_t value) {
      entry = entry == kNone || entry == value ? value : kSeveral;
    };
    for (const Load& load : plan.loads) {
      note(in_slot[static_cast<std::size_t>(load.slot)], load.page);
      note(of_page[static_cast<std::size_t>(load.page)], load.slot);
    }
    for (SlotId slot = 0; slot < slots_; ++slot) {
      const PageId page = in_slot[static_cast<std::size_t>(slot)];
      if (page >= 0 && of_page[static_cast<std::size_t>(page)] == slot) {
        plan.kept.push_back({page, slot});
      }
    }
    std::erase_if(plan.loads, [&](const Load& load) {
      return in_slot[static_cast<std::size_t>(load.slot)] >= 0 &&
             of_page[static_cast<std::size_t>(load.page)] == load.slot;
    });
  }

  const Sequence& sequence_;
  UseIndex index_;
  std::int32_t slots_;
  std::int32_t smallest_;
  std::vector<double> weight_;
};

Status check_options(const Sequence& sequence, const ScheduleOptions& options) {
  PENSTOCK_TRY(validate(sequence));
  if (options.slots < 0 || options.look_ahead < 0) {
    return {Code::kInvalidArgument,
            "a plan needs 0 slots or more and a look-ahead of 0 or more, not " +
                std::to_string(options.slots) + " and " + std::to_string(options.look_ahead)};
  }
  if (const std::int32_t needed = smallest_pool(sequence); options.slots < needed) {
    return {Code::kOutOfMemory, "the largest step needs " + std::to_string(needed) +
                                    " slots and the pool has " + std::to_string(options.slots)};
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
  const Planner planner(sequence, options.slots);
  if (planner.everything_fits()) return planner.keep_everything();
  PENSTOCK_ASSIGN(const Traffic lru, replay(sequence, options.slots, Replacement::kLru, 2));
  std::optional<Plan> best;
  for (std::int32_t look_ahead = options.look_ahead;; look_ahead /= 2) {
    Plan plan = planner.plan(look_ahead);
    if (!best || plan.bytes_in < best->bytes_in) best = std::move(plan);
    if (best->bytes_in <= lru.bytes_in) return std::move(*best);
    if (look_ahead == 0) break;
  }
  std::optional<Plan> like_lru = planner.plan_like_lru(options.may_turn);
  if (like_lru && like_lru->bytes_in < best->bytes_in) return std::move(*like_lru);
  return std::move(*best);
}

}  // namespace penstock::policy
