// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/shared_budget.hpp"

#include <algorithm>
#include <utility>

#include "engine/paging/pager.hpp"

namespace penstock::engine {

void SharedBudget::set_limit(Bytes limit) {
  const std::lock_guard lock(numbers_);
  limit_ = limit;
}

SharedBudget::Use SharedBudget::use() {
  const std::lock_guard lock(numbers_);
  return {limit_, of_pagers_, of_others_, others_peak_};
}

void SharedBudget::new_peak() {
  const std::lock_guard lock(numbers_);
  others_peak_ = of_others_;
}

Bytes SharedBudget::lacking(Bytes bytes) const {
  const Bytes wanted = of_pagers_ + of_others_ + bytes;
  return wanted > limit_ ? wanted - limit_ : 0;
}

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

Status SharedBudget::claim(Bytes bytes) { return take_free(bytes, of_pagers_); }

void SharedBudget::give_back(Bytes bytes) {
  const std::lock_guard lock(numbers_);
  of_pagers_ -= bytes;
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

void SharedBudget::set_reclaim(std::function<void()> reclaim) {
  const std::lock_guard lock(numbers_);
  reclaim_ = std::move(reclaim);
}

void SharedBudget::reclaim() {
  std::function<void()> reclaim;
  {
    const std::lock_guard lock(numbers_);
    reclaim = reclaim_;
  }
  if (reclaim) reclaim();
}

Status BudgetedDriver::count_in(SharedBudget* budget) {
  const std::lock_guard lock(mutex_);
  if (budget == budget_) return {};
  if (budget != nullptr) PENSTOCK_TRY(budget->take(made_));
  if (budget_ != nullptr) (void)budget_->put_back(made_);
  budget_ = budget;
  return {};
}

Result<driver::Chunk> BudgetedDriver::create_chunk(Bytes size, driver::Place place) {
  if (place != driver::Place::kDevice) return device_.create_chunk(size, place);
  const std::lock_guard lock(mutex_);
  sizes_.make_room();
  if (budget_ != nullptr) PENSTOCK_TRY(budget_->take(size));
  Result<driver::Chunk> chunk = device_.create_chunk(size, place);
  if (chunk.ok()) {
    sizes_.insert(static_cast<std::uint64_t>(chunk.value()), size);
    made_ += size;
  } else if (budget_ != nullptr) {
    (void)budget_->put_back(size);
  }
  return chunk;
}

Status BudgetedDriver::release_chunk(driver::Chunk chunk) {
  const std::lock_guard lock(mutex_);
  const Status status = device_.release_chunk(chunk);
  const auto id = static_cast<std::uint64_t>(chunk);
  if (const Bytes* size = sizes_.find(id)) {
    made_ -= *size;
    if (budget_ != nullptr) (void)budget_->put_back(*size);
    sizes_.erase(id);
  }
  return status;
}

}  // namespace penstock::engine
