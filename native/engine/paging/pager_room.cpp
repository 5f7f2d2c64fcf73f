// SPDX-License-Identifier: Apache-2.0
// The pager's room: how many slots the budget allows, giving some back, and bringing pieces in or
// out on request.
#include <algorithm>

#include "base/undo.hpp"
#include "engine/paging/pager.hpp"
#include "engine/paging/shared_budget.hpp"

namespace penstock::engine {

namespace {
constexpr SlotId kYields = 64;  // most times that all slots can be taken for others
}  // namespace

SlotId Pager::slots_for(Bytes budget) const {
  const Bytes pinned = table_.pinned_bytes();
  const Bytes room = budget > pinned ? (budget - pinned) / pool_.chunk_bytes() : 0;
  return static_cast<SlotId>(std::min<Bytes>(room, static_cast<Bytes>(table_.pages())));
}

SlotId Pager::largest_use() const {
  std::size_t largest = 0;
  for (const Use& use : uses_) largest = std::max(largest, use.pages.size());
  if (cursor_.planned()) largest = std::max(largest, nth(policy::smallest_pool(sequence_)));
  return static_cast<SlotId>(largest);
}

Bytes Pager::smallest() {
  const std::lock_guard lock(mutex_);
  const auto slots = std::max<SlotId>(largest_use(), 1);
  return table_.pinned_bytes() + static_cast<Bytes>(slots) * pool_.chunk_bytes();
}

// The emptiest and least needed, so that `wanted` are left; kOutOfMemory where too many are in use.
// What the next plan keeps goes last, where there is to be one.
Result<std::vector<SlotId>> Pager::choose_slots_to_give(SlotId wanted, const policy::Plan* next) {
  std::vector<bool> kept(nth(table_.pages()), false);
  if (next != nullptr) {
    for (const policy::Kept& each : next->kept) kept[nth(each.page)] = true;
  }
  const auto held_then = [&](SlotId id) {
    policy::residency::Held found = held(id);
    if (next != nullptr && !found.empty) found.kept = kept[nth(residents_.slot(id).page)];
    return found;
  };
  std::vector<SlotId> order;
  for (SlotId id = 0; id < residents_.slots(); ++id) {
    const PageId page = residents_.slot(id).page;
    if (page == kNoPage || table_.page(page).active == 0) order.push_back(id);
  }
  const auto count = nth(std::max(0, residents_.slots() - wanted));
  // A program's next work needs one at the least beside what is pinned.
  if (count + (paging_ ? 1 : 0) > order.size()) {
    const auto bytes = static_cast<Bytes>(residents_.slots()) - order.size();
    return Status(Code::kOutOfMemory, size_text(bytes * pool_.chunk_bytes()),
                  " are in use now, and ", size_text(table_.pinned_bytes()),
                  " pinned; there would be room for ",
                  size_text(static_cast<Bytes>(wanted) * pool_.chunk_bytes()));
  }
  std::stable_sort(order.begin(), order.end(), [&](SlotId a, SlotId b) {
    return policy::residency::less_lost(held_then(a), held_then(b));
  });
  order.resize(count);
  return order;
}

// All of them, or on failure none.
Status Pager::give_slots(std::vector<SlotId> slots) {
  for (const SlotId id : slots) PENSTOCK_TRY(residents_.evict(id));
  for (const SlotId id : slots) PENSTOCK_TRY(residents_.settle_slot(id));
  Undo give_back(
      [this, before = residents_.slots()] { residents_.add_slots(before - residents_.slots()); });
  PENSTOCK_TRY(residents_.remove_slots(std::move(slots)));
  give_back.keep();
  return {};
}

// Bring the number of slots to what the budget allows.
Status Pager::fit_slots() {
  const SlotId wanted = slots_for(pool_.budget());
  if (residents_.slots() < wanted) residents_.add_slots(wanted - residents_.slots());
  if (residents_.slots() == wanted) return {};
  residents_.settle_all();
  PENSTOCK_ASSIGN(auto slots, choose_slots_to_give(wanted, nullptr));
  return give_slots(std::move(slots));
}

Status Pager::copy_pinned(const Range& range, Addr address, Bytes bytes, bool in) {
  std::byte* host = range.host + (address - range.address);
  PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
  const Undo destroy([&] { (void)driver_.destroy_stream(stream); });
  for (auto& [other, line] : timelines_) PENSTOCK_TRY(line->synchronize(line->latest()));
  PENSTOCK_TRY(in ? driver_.copy_in(address, host, bytes, stream)
                  : driver_.copy_out(host, address, bytes, stream));
  PENSTOCK_TRY(driver_.synchronize(stream));
  (in ? counters_.bytes_in : counters_.bytes_out) += bytes;
  return {};
}

Status Pager::fetch(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return invalid("fetch outside every range");
  if (range->kind == RangeKind::kOnHost) return {};
  if (range->kind == RangeKind::kPinned) return copy_pinned(*range, address, bytes, true);
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    PENSTOCK_TRY(bring(id));
    PENSTOCK_TRY(residents_.arrive(id));
  }
  for (PageId id = first; id <= last; ++id) PENSTOCK_TRY(residents_.synchronize_page(id));
  return {};
}

Result<bool> Pager::is_resident(Addr address) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, 1);
  if (range == nullptr || range->kind != RangeKind::kPaged) {
    return invalid("no page of a paged range lies there");
  }
  const PageId id = table_.pages_of(*range, address, 1).first;
  (void)residents_.settle(id);  // where it failed, the page is where it was
  return table_.page(id).slot != kNoSlot;
}

Status Pager::flush(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return invalid("flush outside every range");
  if (range->kind == RangeKind::kOnHost) return {};
  if (range->kind == RangeKind::kPinned) return copy_pinned(*range, address, bytes, false);
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  residents_.settle_all();
  for (PageId id = first; id <= last; ++id) {
    if (!table_.page(id).dirty) continue;
    PENSTOCK_TRY(residents_.arrive(id));
    PENSTOCK_TRY(residents_.write_back(id));
  }
  for (PageId id = first; id <= last; ++id) PENSTOCK_TRY(residents_.synchronize_page(id));
  return {};
}

Status Pager::forget(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return invalid("forget outside every range");
  if (range->kind != RangeKind::kPaged) return {};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    if (page.address < address || page.address + page.bytes > address + bytes) continue;
    (void)residents_.settle(id);
    page.dirty = false;
    page.blank = true;
  }
  return {};
}

Status Pager::cool(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return invalid("cool outside every range");
  if (range->kind != RangeKind::kPaged) return {};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) table_.page(id).cold = true;
  return {};
}

Status Pager::resize(Bytes budget) {
  std::unique_lock lock(mutex_);
  wait_for_others(lock);
  const SlotId wanted = slots_for(budget);
  if (wanted < std::min<SlotId>(largest_use(), table_.pages())) {
    return Status(
        Code::kOutOfMemory, "a budget of ", size_text(budget),
        " is below the smallest that works, ",
        size_text(table_.pinned_bytes() + static_cast<Bytes>(largest_use()) * pool_.chunk_bytes()));
  }
  const Bytes before = pool_.budget();
  // What a program's work touched may go once that is over.
  for (std::size_t group = 0; budget < before && group < groups_.size(); ++group) {
    PENSTOCK_TRY(close(group));
  }
  if (shared() != nullptr && budget > before) PENSTOCK_TRY(shared()->claim(budget - before));
  const Status status = change_slots(wanted, budget);
  if (shared() != nullptr) shared()->give_back(std::max(before, budget) - pool_.budget());
  return status;
}

// All or, on failure, nothing.
Status Pager::change_slots(SlotId wanted, Bytes budget) {
  residents_.settle_all();
  const bool replan = wanted != residents_.slots() && cursor_.planned();
  Result<policy::Plan> plan = policy::Plan{};
  if (replan && wanted <= reserve_) plan = Status(Code::kOutOfMemory, "no slot is left to a plan");
  if (replan && plan.ok()) plan = draw_plan(wanted - reserve_);
  if (!plan.ok() && plan.status().code() != Code::kOutOfMemory) return plan.status();
  const policy::Plan* const next = replan && plan.ok() ? &plan.value() : nullptr;
  PENSTOCK_ASSIGN(auto slots, choose_slots_to_give(wanted, next));
  PENSTOCK_TRY(give_slots(std::move(slots)));
  // From here on nothing fails but copies ahead of their time.
  if (residents_.slots() < wanted) residents_.add_slots(wanted - residents_.slots());
  pool_.set_budget(budget);
  const Status planned = guarded([&]() -> Status {
    if (!replan || !plan.ok()) return plan.status();
    adopt(std::move(plan).value(),
          cursor_.begun() % static_cast<std::int64_t>(cursor_.order().size()));
    ++counters_.plans;
    return {};
  });
  if (!planned.ok()) {
    drop_plan();  // too little is left for it: as it comes, then
  } else if (replan) {
    (void)guarded([this] { return issue_loads(); });
  }
  check_residency();
  return {};
}

Status Pager::share(SharedBudget* shared) {
  const std::lock_guard lock(mutex_);
  if (shared != nullptr) PENSTOCK_TRY(shared->claim(pool_.budget()));
  SharedBudget* const before = shared_.exchange(shared, std::memory_order_acq_rel);
  if (before != nullptr) before->give_back(pool_.budget());
  return {};
}

Result<Bytes> Pager::yield(Bytes bytes) {
  std::unique_lock lock(mutex_);
  wait_for_others(lock);
  residents_.settle_all();
  const Bytes before = pool_.budget();
  const Bytes chunk = pool_.chunk_bytes();
  const Bytes of_slots = table_.pinned_bytes() + static_cast<Bytes>(residents_.slots()) * chunk;
  const Bytes beyond = before - std::min(before, of_slots);
  Status status;
  if (bytes <= beyond) {
    pool_.set_budget(before - bytes);
  } else {
    SlotId idle = 0;
    for (SlotId id = 0; id < residents_.slots(); ++id) {
      const PageId page = residents_.slot(id).page;
      idle += page == kNoPage || table_.page(page).active == 0;
    }
    // A share of them at a time: each time there is a new plan.
    const Bytes most = std::max(divide_up(bytes - beyond, chunk),
                                static_cast<Bytes>(residents_.slots() / kYields));
    const auto wanted = static_cast<SlotId>(std::min<Bytes>(most, static_cast<Bytes>(idle)));
    const Bytes left = of_slots - static_cast<Bytes>(wanted) * chunk;
    status = change_slots(residents_.slots() - wanted, std::min(before, left));
  }
  const Bytes yielded = before - pool_.budget();
  if (shared() != nullptr) shared()->give_back(yielded);
  if (!status.ok()) return status;
  return yielded;
}

// Of what is free of a shared budget; kNoSlot where nothing is.
SlotId Pager::one_more_slot() {
  if (shared() == nullptr || residents_.slots() >= table_.pages()) return kNoSlot;
  if (!shared()->claim(pool_.chunk_bytes()).ok()) {
    lacks_budget_ = true;
    return kNoSlot;
  }
  pool_.set_budget(pool_.budget() + pool_.chunk_bytes());
  residents_.add_slots(1);
  return residents_.slots() - 1;
}

}  // namespace penstock::engine
