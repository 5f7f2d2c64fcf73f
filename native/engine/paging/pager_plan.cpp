// SPDX-License-Identifier: Apache-2.0
// The pager's plan: making one, moving over to it with as few copies as can be, and issuing its
// loads.  The lock is held throughout.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/paging/pager.hpp"

namespace penstock::engine {

namespace {
constexpr double kNews = 0.25;  // of the time of an iteration: a new plan, and the host's is noisy
}  // namespace

// What an iteration of the plan's computes, in the time that the pages of its steps take to copy.
std::optional<double> Pager::computes() const {
  double ms = 0;
  for (const std::int64_t number : planned_turns_) {
    double turn_ms = 0;
    const auto now = kinds_.find(kind_);  // several kinds may have one order
    if (now != kinds_.end() && now->second.number == number) {
      const auto found = now->second.compute_ms.find(work_);
      if (found != now->second.compute_ms.end()) turn_ms = found->second;
    } else {
      for (const auto& [kind, known] : kinds_) {
        if (known.number == number) turn_ms = std::max(turn_ms, known.latest_ms);
      }
    }
    if (turn_ms == 0) return {};
    ms += turn_ms;
  }
  double bytes = 0;
  for (const policy::Step& step : sequence_.steps) {
    for (const PageId page : step.pages) {
      bytes += static_cast<double>(sequence_.page_bytes[nth(page)]);
    }
  }
  if (ms == 0 || bytes == 0) return {};
  return ms * options_.link_gb_per_s * 1e6 / bytes;
}

// An iteration has been timed: by how much do plans of its kind know better?
void Pager::profiled() {
  const StallSummary& found = stalls_.summary();
  const double compute_ms = std::max(found.total_ms - found.stall_ms, 0.0);
  const auto known = kinds_.find(found.kind);
  if (options_.link_gb_per_s == 0 || known == kinds_.end()) return;
  known->second.latest_ms = compute_ms;
  double& before = known->second.compute_ms[found.work];
  if (std::abs(compute_ms - before) <= kNews * before) return;
  before = compute_ms;
  measured_ = true;
}

Result<policy::Plan> Pager::draw_plan(SlotId slots) const {
  policy::ScheduleOptions options;
  options.slots = slots;
  options.look_ahead =
      static_cast<std::int32_t>(divide_up(options_.look_ahead_bytes, pool_.chunk_bytes()));
  options.compute = computes();
  Result<policy::Plan> plan = policy::schedule(sequence_, options);
#ifdef PENSTOCK_CHECKS
  if (plan.ok()) fail_unless(policy::check(sequence_, options, plan.value()));
#endif
  return plan;
}

Status Pager::make_plan() {
  PENSTOCK_ASSIGN(policy::Plan plan, draw_plan(residents_.slots() - reserve_));
  ++counters_.plans;
  adopt(std::move(plan), 0);
  return {};
}

// The plan's slot numbers are names: give each the slot that already holds one of its pages, so
// that adopting a plan moves as little as possible.
void Pager::relabel(policy::Plan& plan) {
  const auto count = static_cast<std::size_t>(residents_.slots());
  std::vector<SlotId> actual(count, kNoSlot);
  std::vector<bool> taken(count, false);
  const auto claim = [&](SlotId name, SlotId slot) {
    if (slot == kNoSlot || taken[static_cast<std::size_t>(slot)]) return;
    if (actual[static_cast<std::size_t>(name)] != kNoSlot) return;
    actual[static_cast<std::size_t>(name)] = slot;
    taken[static_cast<std::size_t>(slot)] = true;
  };
  // What the iteration begins with has the best claim, and of it what is there already: else a page
  // would stay where another is to come.
  const auto claim_all = [&](bool beginning, SlotId Page::*where) {
    if (beginning) {
      for (const policy::Kept& kept : plan.kept) claim(kept.slot, table_.page(kept.page).*where);
    }
    for (const policy::Load& load : plan.loads) {
      if ((load.last < load.first) == beginning) claim(load.slot, table_.page(load.page).*where);
    }
  };
  claim_all(true, &Page::slot);
  claim_all(true, &Page::mapped);
  claim_all(false, &Page::slot);
  claim_all(false, &Page::mapped);
  // The rest where least is lost: empty ones first, those in use last.
  std::vector<SlotId> spare;
  for (SlotId slot = 0; slot < residents_.slots(); ++slot) {
    if (!taken[static_cast<std::size_t>(slot)]) spare.push_back(slot);
  }
  const auto loss = [&](SlotId slot) {
    const PageId page = residents_.slot(slot).page;
    return page == kNoPage ? 0 : table_.page(page).active == 0 ? 1 : 2;
  };
  std::stable_sort(spare.begin(), spare.end(),
                   [&](SlotId a, SlotId b) { return loss(a) < loss(b); });
  std::size_t next = 0;
  for (SlotId& slot : actual) {
    if (slot == kNoSlot) slot = spare[next++];
  }
  for (policy::Kept& kept : plan.kept) kept.slot = actual[static_cast<std::size_t>(kept.slot)];
  for (policy::Load& load : plan.loads) load.slot = actual[static_cast<std::size_t>(load.slot)];
}

void Pager::adopt(policy::Plan plan, std::int64_t begun) {
  residents_.collect();
  relabel(plan);
  for (SlotId id = 0; id < residents_.slots(); ++id) residents_.slot(id).release = -1;
  std::vector<UseId> order = cursor_.order();
  cursor_.adopt(std::move(plan), std::move(order), sequence_, begun);
  // Bring in what is to stay, and what the end of an iteration would have brought in for this one,
  // unless something in use is in its place: then its next use will.
  struct Stay {
    PageId page;
    SlotId slot;
    std::int64_t release;
  };
  std::vector<Stay> stays;
  for (const policy::Kept& kept : cursor_.plan().kept) {
    stays.push_back({kept.page, kept.slot, kForEver});
  }
  for (const policy::Load& load : cursor_.plan().loads) {
    if (load.last < load.first && load.last >= begun) {
      stays.push_back({load.page, load.slot, load.last});
    }
  }
  std::sort(stays.begin(), stays.end(),
            [](const Stay& a, const Stay& b) { return a.page < b.page; });
  std::vector<SlotId> run;
  for (const Stay& stay : stays) {
    if (table_.page(stay.page).slot == kNoSlot) run.push_back(stay.slot);
  }
  (void)residents_.give_chunks(run);  // in few calls; what there is no memory for does not come
  for (std::size_t i = 0; i < stays.size();) {
    const PageId first = stays[i].page;
    run.clear();
    Bytes bytes = 0;
    while (i < stays.size() && stays[i].page == first + static_cast<PageId>(run.size())) {
      const Page& page = table_.page(stays[i].page);
      const Slot& slot = residents_.slot(stays[i].slot);
      const bool occupied =
          slot.move != nullptr || (slot.page != kNoPage && table_.page(slot.page).active > 0);
      if (page.slot != kNoSlot || page.move != nullptr || occupied ||
          page.range != table_.page(first).range || bytes + page.bytes > options_.max_copy_bytes) {
        break;
      }
      bytes += page.bytes;
      run.push_back(stays[i++].slot);
    }
    if (run.empty()) {
      ++i;
      continue;
    }
    if (residents_.place(first, run, true).ok()) counters_.prefetched_pages += run.size();
  }
  for (const Stay& stay : stays) {
    const SlotId slot = table_.page(stay.page).slot;
    if (slot != kNoSlot) residents_.slot(slot).release = stay.release;
  }
}

// A page that is to be loaded has not left its former slot yet.  It may stay there, which saves a
// copy, unless another page is to come into that slot before its new span is over.
bool Pager::in_the_way(const PlanCursor::Next& load) {
  const SlotId here = table_.page(load.page).slot;
  if (here == load.slot || load.first < cursor_.begun() || !is_free(here)) return false;
  for (std::int64_t skip = 1;; ++skip) {
    const auto other = cursor_.peek_after(skip);
    if (!other || other->first > load.last) return false;
    if (other->slot == here && other->page != load.page) return true;
  }
}

// Too little room for any plan: as it comes, then.
Status Pager::plan_or_drop() {
  Status status(Code::kOutOfMemory, {});
  if (reserve_ < residents_.slots()) status = make_plan();
  if (status.code() == Code::kOutOfMemory) drop_plan();
  return status.code() == Code::kOutOfMemory ? Status{} : status;
}

void Pager::drop_plan() {
  cursor_.drop();
  reserve_ = 0;
  for (SlotId id = 0; id < residents_.slots(); ++id) residents_.slot(id).release = -1;
}

// Issue the plan's next loads for as long as their slots are free, neighbours in one copy.
Status Pager::issue_loads() {
  std::vector<SlotId> run;
  std::vector<std::int64_t> stays;
  residents_.collect();
  held_up_ = false;
  while (auto next = cursor_.peek()) {
    Page& page = table_.page(next->page);
    if (next->last < cursor_.begun() && page.active == 0) {
      cursor_.pop();  // its time has passed: the program skipped it, or demanded it already
      continue;
    }
    if (page.slot != kNoSlot && in_the_way(*next)) {
      if (!is_free(next->slot)) return {};
      PENSTOCK_TRY(residents_.evict(page.slot));
    }
    if (page.slot != kNoSlot) {
      Slot& slot = residents_.slot(page.slot);
      slot.release = std::max(slot.release, next->last);
      cursor_.pop();
      continue;
    }
    held_up_ = page.move != nullptr || residents_.slot(next->slot).move != nullptr;
    if (held_up_) return {};
    const PageId first = next->page;
    run.clear();
    stays.clear();
    Bytes bytes = 0;
    while (next && next->page == first + static_cast<PageId>(run.size()) &&
           table_.page(next->page).slot == kNoSlot && table_.page(next->page).move == nullptr &&
           table_.page(next->page).range == page.range && is_free(next->slot) &&
           std::find(run.begin(), run.end(), next->slot) == run.end() &&
           (run.empty() || residents_.freed_together(run.front(), next->slot)) &&
           bytes + table_.page(next->page).bytes <= options_.max_copy_bytes) {
      run.push_back(next->slot);
      stays.push_back(next->last);
      bytes += table_.page(next->page).bytes;
      next = cursor_.peek_after(static_cast<std::int64_t>(run.size()));
    }
    if (run.empty()) return {};
    PENSTOCK_TRY(residents_.place(first, run, true));
    for (std::size_t i = 0; i < run.size(); ++i) {
      residents_.slot(run[i]).release = stays[i];
      cursor_.pop();
    }
    counters_.prefetched_pages += run.size();
  }
  return {};
}

}  // namespace penstock::engine
