// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/shared_budget.hpp"

#include <algorithm>
#include <utility>

#include "engine/paging/pager.hpp"

namespace penstock::engine {

Status SharedBudget::take_free(Bytes bytes, Bytes& from) {
  const std::lock_guard lock(numbers_);
  if (lacking(bytes) > 0) {
    return Status(Code::kOutOfMemory, size_text(bytes), " more than the ", size_text(of_pagers_),
                  " of pages and ", size_text(of_others_),
                  " of other memory that are in use exceed the budget of ", size_text(limit_));
  }
  from += bytes;
  others_peak_ = std::max(others_peak_, of_others_);
  return {};
}

Status SharedBudget::put_back(Bytes bytes) {
  const std::lock_guard lock(numbers_);
  if (bytes > of_others_) {
    return invalid(size_text(bytes), " given back of ", size_text(of_others_), " that were taken");
  }
  of_others_ -= bytes;
  return {};
}

Status SharedBudget::join(Pager& pager) {
  const std::lock_guard lock(members_);
  pagers_.reserve(pagers_.size() + 1);
  PENSTOCK_TRY(pager.share(this));
  pagers_.push_back(&pager);
  return {};
}

void SharedBudget::leave(Pager& pager) {
  const std::lock_guard lock(members_);
  if (std::erase(pagers_, &pager) > 0) (void)pager.share(nullptr);
}

Status SharedBudget::take(Bytes bytes) {
  for (;;) {  // what has been freed may be somebody else's by now
    Status status = take_free(bytes, of_others_);
    if (status.code() != Code::kOutOfMemory) return status;
    if (!make_room(bytes, nullptr).ok()) return status;
  }
}

Status SharedBudget::make_room(Bytes bytes, const Pager* but) {
  const std::lock_guard lock(members_);
  std::vector<Pager*> order = pagers_;
  std::stable_sort(order.begin(), order.end(), [](const Pager* a, const Pager* b) {
    return a->last_begun() < b->last_begun();
  });
  // What leaves may be claimed by somebody else at once, so nobody gives up while pages leave.
  for (Bytes left = 1; left > 0;) {
    left = 0;
    for (Pager* pager : order) {
      Bytes lack = 0;
      {
        const std::lock_guard numbers(numbers_);
        lack = lacking(bytes);
      }
      if (lack == 0) return {};
      if (pager == but) continue;
      PENSTOCK_ASSIGN(const Bytes yielded, pager->yield(lack));
      left += yielded;
    }
  }
  const std::lock_guard numbers(numbers_);
  if (lacking(bytes) == 0) return {};
  return Status(Code::kOutOfMemory, "no page can leave for ", size_text(bytes));
}

void SharedBudget::reclaim() {
  std::function<void()> reclaim;
  {
    const std::lock_guard lock(numbers_);
    reclaim = reclaim_;
  }
  if (reclaim) reclaim();
}

Status CountedMemory::count_in(SharedBudget* budget) {
  const std::lock_guard lock(mutex_);
  if (budget == budget_) return {};
  if (budget != nullptr) PENSTOCK_TRY(budget->take(made_));
  if (budget_ != nullptr) (void)budget_->put_back(made_);
  budget_ = budget;
  return {};
}

void CountedMemory::gone(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const Bytes* const size = sizes_.find(number);
  if (size == nullptr) return;
  made_ -= *size;
  if (budget_ != nullptr) (void)budget_->put_back(*size);
  sizes_.erase(number);
}

}  // namespace penstock::engine
