// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/stall_profile.hpp"

namespace penstock::engine {

StallProfile::~StallProfile() {
  for (const driver::Event event : pool_) (void)driver_.destroy_event(event);
}

Result<driver::Event> StallProfile::event() {
  if (used_ == pool_.size()) {
    PENSTOCK_ASSIGN(const driver::Event made, driver_.create_event(true));
    pool_.push_back(made);
  }
  return pool_[used_++];
}

Status StallProfile::harvest() {
  StallSummary summary;
  PENSTOCK_ASSIGN(const float total, driver_.elapsed_ms(pool_[0], pool_[1]));
  summary.total_ms = total;
  summary.iterations = summary_.iterations + 1;
  for (const Wait& wait : waits_) {
    PENSTOCK_ASSIGN(const float stall, driver_.elapsed_ms(wait.from, wait.to));
    summary.stall_ms += stall;
    if (stall > summary.largest_ms) {
      summary.largest_ms = stall;
      summary.largest_use = wait.use;
    }
  }
  summary_ = summary;
  return {};
}

Status StallProfile::next_iteration(std::uint64_t iteration) {
  if (every_ <= 0) return {};
  running_ = false;
  if (ended_) {
    const Status over = driver_.query(pool_[1]);
    if (over.code() == Code::kNotReady) return {};  // ask again at the next boundary
    PENSTOCK_TRY(over);
    PENSTOCK_TRY(harvest());
    ended_ = false;
  }
  running_ = iteration % static_cast<std::uint64_t>(every_) == 0;
  started_ = false;
  used_ = 0;
  waits_.clear();
  return {};
}

Status StallProfile::use_begins(driver::Stream stream) {
  if (!running_ || started_) return {};
  PENSTOCK_ASSIGN(const driver::Event start, event());
  PENSTOCK_ASSIGN(const driver::Event end, event());
  (void)end;
  started_ = true;
  return driver_.record(start, stream);
}

Status StallProfile::wait_begins(UseId use, driver::Stream stream) {
  if (!running_) return {};
  PENSTOCK_ASSIGN(const driver::Event from, event());
  PENSTOCK_ASSIGN(const driver::Event to, event());
  waits_.push_back(Wait{use, from, to});
  PENSTOCK_TRY(driver_.record(to, stream));
  return driver_.record(from, stream);
}

Status StallProfile::wait_ends(driver::Stream stream) {
  if (!running_ || waits_.empty()) return {};
  return driver_.record(waits_.back().to, stream);
}

Status StallProfile::use_ends(driver::Stream stream) {
  if (!running_ || !started_) return {};
  ended_ = true;
  return driver_.record(pool_[1], stream);
}

}  // namespace penstock::engine
