// SPDX-License-Identifier: Apache-2.0
#include "policy/draft.hpp"

#include <algorithm>
#include <utility>

#include "policy/slots.hpp"
#include "policy/stay_put.hpp"

namespace penstock::policy {

Drafts::Drafts(const Sequence& sequence, std::int32_t slots, bool times)
    : sequence_(sequence), index_(sequence), slots_(slots), smallest_(smallest_pool(sequence)) {
  for (const Step& step : sequence.steps) {
    weight_.push_back(times ? step.compute_ms : static_cast<double>(step.pages.size()));
  }
}

bool Drafts::has_loops() const {
  for (PageId page = 0; page < index_.pages(); ++page) {
    int gaps = 0;
    for (UseIndex::Id use = index_.begin(page); use < index_.end(page); ++use) {
      if (index_.gap_length(use) > 0 && ++gaps > 1) return true;
    }
  }
  return false;
}

Plan Drafts::keep_everything() const {
  return finish(join_gaps(index_, KeptGaps(index_.uses(), 1)), {});
}

Plan Drafts::of_pages(std::int32_t look_ahead) const {
  return draft(look_ahead, [&](std::int32_t capacity) {
    return select_pages(sequence_, index_, capacity, weight_);
  });
}

Plan Drafts::of_gaps(std::int32_t look_ahead) const {
  return draft(look_ahead, [&](std::int32_t capacity) {
    return select_gaps(sequence_, index_, capacity, weight_);
  });
}

template <class Select>
Plan Drafts::draft(std::int32_t look_ahead, const Select& select) const {
  const std::int32_t capacity = std::max(smallest_, slots_ - look_ahead);
  Spans spans = join_gaps(index_, select(capacity));
  // A slot earns its keep when two loads or more share it: with more slots than that, some page
  // would come back to a slot that no other has used.
  const std::int64_t idle = 2 * std::int64_t{stream_slots(spans)} - std::ssize(spans.loads);
  if (idle > 0 && capacity < slots_) {
    spans = join_gaps(
        index_, select(static_cast<std::int32_t>(std::min<std::int64_t>(slots_, capacity + idle))));
  }
  return with_fixed_slots(std::move(spans));
}

Plan Drafts::like_lru(bool may_turn) const {
  Spans spans = join_gaps(index_, select_lru_gaps(sequence_, index_, slots_));
  const std::size_t loads = spans.loads.size();
  Plan plan = with_fixed_slots(spans);
  if (plan.loads.size() <= loads || !may_turn) return plan;
  return with_turning_slots(std::move(spans));
}

Plan Drafts::with_fixed_slots(Spans spans) const {
  assign_slots(index_, stream_slots(spans), spans.loads);
  stay_put(index_.steps(), spans.loads);
  return finish(std::move(spans), {});
}

Plan Drafts::with_turning_slots(Spans spans) const {
  std::vector<SlotId> turn = assign_turning_slots(index_.steps(), stream_slots(spans), spans.loads);
  return finish(std::move(spans), std::move(turn));
}

std::int32_t Drafts::stream_slots(const Spans& spans) const {
  return slots_ - static_cast<std::int32_t>(spans.kept.size());
}

// Kept pages in the first slots, the loads behind them.
Plan Drafts::finish(Spans spans, std::vector<SlotId> turn) const {
  Plan plan;
  const auto kept = static_cast<SlotId>(spans.kept.size());
  for (SlotId slot = 0; slot < kept; ++slot) {
    plan.kept.push_back({spans.kept[static_cast<std::size_t>(slot)], slot});
    if (!turn.empty()) plan.turn.push_back(slot);
  }
  for (const SlotId to : turn) plan.turn.push_back(kept + to);
  plan.loads = std::move(spans.loads);
  for (Load& load : plan.loads) load.slot += kept;
  if (turn.empty()) keep_lone_pages(plan);
  std::vector<bool> used(static_cast<std::size_t>(slots_), false);
  for (const Load& load : plan.loads) {
    plan.bytes_in += sequence_.page_bytes[static_cast<std::size_t>(load.page)];
    used[static_cast<std::size_t>(load.slot)] = true;
  }
  plan.stream_slots = static_cast<std::int32_t>(std::count(used.begin(), used.end(), true));
  return plan;
}

// A page that has a slot to itself need not be loaded again and again.
void Drafts::keep_lone_pages(Plan& plan) const {
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
  const auto alone = [&](PageId page, SlotId slot) {
    return in_slot[static_cast<std::size_t>(slot)] == page &&
           of_page[static_cast<std::size_t>(page)] == slot;
  };
  for (SlotId slot = 0; slot < slots_; ++slot) {
    const PageId page = in_slot[static_cast<std::size_t>(slot)];
    if (page >= 0 && alone(page, slot)) plan.kept.push_back({page, slot});
  }
  std::erase_if(plan.loads, [&](const Load& load) { return alone(load.page, load.slot); });
}

}  // namespace penstock::policy
