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
  void set_limit(Bytes limit);
  // The pager's own budget is part of this one from here on, and grows by what is free of it when a
  // use needs more.
  Status join(Pager& pager);
  void leave(Pager& pager);
  // For a pager; nobody leaves for it: kOutOfMemory where it is not free.
  Status claim(Bytes bytes);
  void give_back(Bytes bytes);
  // For others; pages that are not in use leave for it.
  Status take(Bytes bytes);
  Status put_back(Bytes bytes);
  // Pages of all pagers but one leave until so much is free, those that have rested longest first.
  Status make_room(Bytes bytes, const Pager* but);
  // Called, with no lock held, when a use finds no room: others give back what they keep for later.
  void set_reclaim(std::function<void()> reclaim);
  void reclaim();

  struct Use {
    Bytes limit = 0;
    Bytes pagers = 0;  // that they may hold
    Bytes others = 0;  // that they do
    Bytes others_peak = 0;
  };
  Use use();
  void new_peak();  // of others, from here on

 private:
  [[nodiscard]] Bytes lacking(Bytes bytes) const;  // numbers_ is held
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

// A device whose chunks count as those of others.
class BudgetedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  // What it has made, and makes from here on, counts there; null: nowhere.  The budget outlives it.
  Status count_in(SharedBudget* budget);

  Result<driver::Chunk> create_chunk(Bytes size, driver::Place place) override;
  Status release_chunk(driver::Chunk chunk) override;

 private:
  std::mutex mutex_;
  SharedBudget* budget_ = nullptr;
  FlatMap<Bytes> sizes_;  // of chunks on the device
  Bytes made_ = 0;
};

}  // namespace penstock::engine
