// SPDX-License-Identifier: Apache-2.0
// One budget for all that a device holds: pagers, each with what it may hold at most, and memory of
// others, for which pages leave.  So who allocates runs out of memory only where what is in use
// does not fit.
//
// Thread rule: any thread.  A pager, under its own lock, calls claim() and give_back() alone.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "base/flat_map.hpp"
#include "driver/forwarding.hpp"

namespace penstock::engine {

class Pager;

class SharedBudget {
 public:
  explicit SharedBudget(Bytes limit) : limit_(limit) {}
  SharedBudget(const SharedBudget&) = delete;
  SharedBudget& operator=(const SharedBudget&) = delete;

  // Beyond a lower limit nothing more is given, until enough has been given back.
  void set_limit(Bytes limit) {
    const std::lock_guard lock(numbers_);
    limit_ = limit;
  }
  // The pager's own budget is part of this one from here on, and grows by what is free of it when a
  // use needs more.
  Status join(Pager& pager);
  void leave(Pager& pager);
  // For a pager; nobody leaves for it: kOutOfMemory where it is not free.
  Status claim(Bytes bytes) { return take_free(bytes, of_pagers_); }
  void give_back(Bytes bytes) {
    const std::lock_guard lock(numbers_);
    of_pagers_ -= bytes;
  }
  // For others; pages that are not in use leave for it.
  Status take(Bytes bytes);
  Status put_back(Bytes bytes);
  // Pages of all pagers but one leave until so much is free, those that have rested longest first.
  Status make_room(Bytes bytes, const Pager* but);
  // Called, with no lock held, when a use finds no room: others give back what they keep for later.
  void set_reclaim(std::function<void()> reclaim) {
    const std::lock_guard lock(numbers_);
    reclaim_ = std::move(reclaim);
  }
  void reclaim();

  struct Use {
    Bytes limit = 0;
    Bytes pagers = 0;  // that they may hold
    Bytes others = 0;  // that they do
    Bytes others_peak = 0;
  };
  Use use() {
    const std::lock_guard lock(numbers_);
    return {limit_, of_pagers_, of_others_, others_peak_};
  }
  void new_peak() {  // of others, from here on
    const std::lock_guard lock(numbers_);
    others_peak_ = of_others_;
  }

 private:
  [[nodiscard]] Bytes lacking(Bytes bytes) const {  // numbers_ is held
    const Bytes wanted = of_pagers_ + of_others_ + bytes;
    return wanted > limit_ ? wanted - limit_ : 0;
  }
  Status take_free(Bytes bytes, Bytes& from);

  std::mutex numbers_;
  Bytes limit_;
  Bytes of_pagers_ = 0;
  Bytes of_others_ = 0;
  Bytes others_peak_ = 0;
  std::mutex members_;  // taken before any pager's lock, which comes before numbers_
  std::vector<Pager*> pagers_;
  std::function<void()> reclaim_;
};

// Pieces of a device's memory that others make, by numbers; they count in a budget, or nowhere.
// Thread rule: any thread; held while a piece is made, so that it counts where it was asked for.
class CountedMemory {
 public:
  // What there is, and is made from here on, counts there; null: nowhere.  The budget outlives it.
  Status count_in(SharedBudget* budget);
  // `make()` gives the number of a piece, once there is room for it.
  template <class Make>
  auto make(Bytes bytes, Make&& make) -> decltype(make()) {
    const std::lock_guard lock(mutex_);
    sizes_.make_room();
    if (budget_ != nullptr) PENSTOCK_TRY(budget_->take(bytes));
    auto made = make();
    if (made.ok()) {
      sizes_.insert(static_cast<std::uint64_t>(made.value()), bytes);
      made_ += bytes;
    } else if (budget_ != nullptr) {
      (void)budget_->put_back(bytes);
    }
    return made;
  }
  void gone(std::uint64_t number);  // nothing, where it is none of these

 private:
  std::mutex mutex_;
  SharedBudget* budget_ = nullptr;
  FlatMap<Bytes> sizes_;
  Bytes made_ = 0;
};

// A device whose chunks count as those of others.
class BudgetedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  Status count_in(SharedBudget* budget) { return chunks_.count_in(budget); }

  Result<driver::Chunk> create_chunk(Bytes size, driver::Place place) override {
    if (place != driver::Place::kDevice) return device_.create_chunk(size, place);
    return chunks_.make(size, [&] { return device_.create_chunk(size, place); });
  }
  Status release_chunk(driver::Chunk chunk) override {
    const Status status = device_.release_chunk(chunk);
    chunks_.gone(static_cast<std::uint64_t>(chunk));
    return status;
  }

 private:
  CountedMemory chunks_;  // on the device
};

}  // namespace penstock::engine
