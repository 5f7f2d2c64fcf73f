// SPDX-License-Identifier: Apache-2.0
// The pager learns the order of uses of a program that announces its work: when the last uses
// repeat those before them and touch more than there is room for, they become the plan; when the
// program leaves the plan for long, it is dropped.  The lock is held throughout.
#include <algorithm>

#include "engine/paging/pager.hpp"

namespace penstock::engine {

namespace {

// A use that the plan does not have stands for so many of its steps at most.
constexpr std::int64_t kMostSteps = 8;
// A program of more uses than this is learned anew: 20 MB of them, and no iteration has so many.
constexpr std::size_t kMostUses = 1 << 15;

}  // namespace

UseId Pager::intern(const std::vector<PageId>& pages) {
  if (uses_.size() >= kMostUses && !interned_.contains(pages)) forget_uses();
  const auto [found, added] = interned_.try_emplace(pages, static_cast<UseId>(uses_.size()));
  if (added) uses_.push_back({pages, pages});
  return found->second;
}

// Of those that were learned; a program that announces its work declares none.
void Pager::forget_uses() {
  drop_plan();
  period_.forget();
  known_ = {};
  next_try_ = 0;
  interned_.clear();
  uses_.clear();
}

void Pager::drop_plan() {
  cursor_.drop();
  straying_.reset();
  stolen_ = missed_ = 0;
  reserve_ = 0;
  listed_ = false;
  for (SlotId id = 0; id < residents_.slots(); ++id) {
    residents_.set_planned(id, false);
    residents_.slot(id).release = -1;
  }
}

Status Pager::use_begins(UseId use) {
  const auto steps = static_cast<std::int64_t>(cursor_.order().size());
  if (cursor_.planned()) {
    if (follows(use)) {
      straying_.follows();
    } else {
      ++counters_.mismatches;
      disturbed_ = true;
      straying_.goes_against();
      if (straying_.over(steps)) drop_plan();
    }
  }
  if (cursor_.planned() && cursor_.begun() % steps == 0) {
    ++counters_.iterations;
    before_ = at_boundary_;
    at_boundary_ = counters_;
    // A page that found no slot left early is missed as well, later.
    const SlotId lacking = std::max(std::exchange(stolen_, 0), std::exchange(missed_, 0));
    const SlotId wanted = straying_.reserve(reserve_, lacking, residents_.slots());
    // On the way from one phase to another, pages are missed whatever is left to them.
    if (wanted > reserve_ && counters_.mismatches == before_.mismatches) {
      reserve_ = wanted;
      known_.remember(reserve_);
      PENSTOCK_TRY(plan_or_drop());
    }
    disturbed_ = false;
  }
  return learn(use);
}

// A use that the plan does not have may go by it nevertheless: it touches all that the next steps
// do, or a part of one of them.  So is the first token behind a prompt, half of its uses.  Taken
// for uses against the plan they ended it, and a token of GPT-2 XL in a quarter of what it needs
// took 64 ms where it takes 46 (benchmarks/results/run/h200-xl-7 and -8).
bool Pager::follows(UseId use) {
  const std::int64_t left_out = cursor_.begin(use);
  if (left_out != kForEver) return left_out == 0;
  const auto pages_of = [&](UseId each) -> const std::vector<PageId>& {
    return uses_[static_cast<std::size_t>(each)].pages;
  };
  const auto within = [](const std::vector<PageId>& some, const std::vector<PageId>& all) {
    return std::includes(all.begin(), all.end(), some.begin(), some.end());
  };
  const std::vector<PageId>& pages = pages_of(use);
  std::int64_t steps = 0;
  while (steps < kMostSteps && within(pages_of(cursor_.expected()), pages)) {
    (void)cursor_.begin(cursor_.expected());
    ++steps;
  }
  if (steps > 0 || within(pages, pages_of(cursor_.latest()))) return true;
  if (!within(pages, pages_of(cursor_.expected()))) return false;
  (void)cursor_.begin(cursor_.expected());
  return true;
}

bool Pager::tells(const Page& page) const {
  return page.hotness.tells(period_.fed(), page.live, hot_, residents_.slots());
}

void Pager::joins(Page& page, bool of_use) {
  hot_ += page.hotness.joins(period_.fed());
  if (!of_use) page.other = period_.fed() + 1;
}

// An order that was planned before needs no second round to be planned again.
Status Pager::recognise() {
  if (known_.size() == 0 || (cursor_.planned() && !straying_.lost())) return {};
  const std::size_t most = policy::learning::KnownOrders::kTelling;
  if (period_.size() < most) return {};
  auto known = known_.followed(period_.last(most));
  if (!known) return {};
  return adopt_order(std::move(known->order), known->reserve, known->next);
}

Status Pager::learn(UseId use) {
  const bool repeats = period_.feed(use);
  PENSTOCK_TRY(recognise());
  if (!repeats || (cursor_.planned() && straying_.none())) return {};
  if (period_.fed() < next_try_) return {};
  for (const std::size_t period : period_.holding()) {
    std::vector<UseId> order = period_.last(period);
    std::vector<PageId> pages;
    for (const UseId each : order) {
      const auto& of_use = uses_[static_cast<std::size_t>(each)].pages;
      pages.insert(pages.end(), of_use.begin(), of_use.end());
    }
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    if (static_cast<SlotId>(pages.size()) + others_within(period) <= residents_.slots()) continue;
    if (known_.covers(order)) continue;
    return adopt_order(std::move(order));
  }
  // It all fits, or is known, as far as can be seen: look again in a while.
  next_try_ = period_.fed() + 1 + period_.holding().back() / 4;
  return {};
}

// Pages that the plan would not know and that the last uses needed beside its own.
SlotId Pager::others_within(std::size_t uses) const {
  SlotId count = 0;
  for (SlotId id = 0; id < residents_.slots(); ++id) {
    const PageId held = residents_.slot(id).page;
    if (held == kNoPage) continue;
    const Page& page = table_.page(held);
    if (page.other > 0 && page.other + uses > period_.fed()) ++count;
  }
  return count;
}

Status Pager::adopt_order(std::vector<UseId> order, SlotId reserve, std::size_t next) {
  policy::Sequence sequence;
  sequence.page_bytes.reserve(static_cast<std::size_t>(table_.pages()));
  for (PageId id = 0; id < table_.pages(); ++id) {
    sequence.page_bytes.push_back(table_.page(id).bytes);
  }
  for (const UseId use : order) {
    sequence.steps.push_back({uses_[static_cast<std::size_t>(use)].pages});
  }
  reserve_ = std::max(others_within(order.size()) + 1, reserve);
  straying_.reset();
  stolen_ = missed_ = 0;
  sequence_ = std::move(sequence);
  known_.add(order);
  cursor_.adopt({}, std::move(order), sequence_);
  return plan_or_drop(static_cast<std::int64_t>(next));
}

// Too little room for any plan: as it comes, then.
Status Pager::plan_or_drop(std::int64_t begun) {
  Status status(Code::kOutOfMemory, {});
  if (reserve_ < residents_.slots()) status = make_plan(begun);
  if (status.code() != Code::kOutOfMemory) return status;
  drop_plan();
  next_try_ = period_.fed() + 1024;
  return {};
}

}  // namespace penstock::engine
