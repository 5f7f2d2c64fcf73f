// SPDX-License-Identifier: Apache-2.0
// How long a stream stood waiting for pages in one iteration, by timing events around each wait.
// Timing events cost the stream a microsecond or two each, so only every Nth iteration is profiled.
#pragma once

#include <cstdint>
#include <vector>

#include "driver/driver.hpp"
#include "engine/paging/recorder.hpp"

namespace penstock::engine {

struct StallSummary {
  std::uint64_t iterations = 0;  // profiled so far
  double total_ms = 0;           // first use to end of the last, of the last profiled iteration
  double stall_ms = 0;
  double largest_ms = 0;
  UseId largest_use = -1;
  std::int64_t kind = 0;  // of the iteration
  int work = 0;
};

class StallProfile {
 public:
  StallProfile(driver::Driver& driver, std::int32_t every) : driver_(driver), every_(every) {}
  ~StallProfile() {
    for (const driver::Event event : pool_) (void)driver_.destroy_event(event);
  }
  StallProfile(const StallProfile&) = delete;
  StallProfile& operator=(const StallProfile&) = delete;

  // Call at every iteration boundary; reads what has completed.  Due: an iteration of the kind that
  // begins is wanted besides every Nth.
  Status next_iteration(std::uint64_t iteration, std::int64_t kind = 0, int work = 0,
                        bool due = false) {
    if (every_ <= 0) return {};
    running_ = false;
    if (ended_) {
      const Status over = driver_.query(pool_[1]);
      if (over.code() == Code::kNotReady) return {};  // ask again at the next boundary
      PENSTOCK_TRY(over);
      PENSTOCK_TRY(harvest());
      ended_ = false;
    }
    running_ = due || iteration % static_cast<std::uint64_t>(every_) == 0;
    kind_ = kind;
    work_ = work;
    started_ = false;
    used_ = 0;
    waits_.clear();
    return {};
  }
  Status use_begins(driver::Stream stream) {
    if (!running_ || started_) return {};
    used_ = 0;
    PENSTOCK_ASSIGN(const driver::Event start, event());
    PENSTOCK_ASSIGN(const driver::Event end, event());
    (void)end;
    started_ = true;
    return driver_.record(start, stream);
  }
  Status wait_begins(UseId use, driver::Stream stream) {
    if (!running_) return {};
    room_for(waits_, waits_.size() + 1);
    PENSTOCK_ASSIGN(const driver::Event from, event());
    PENSTOCK_ASSIGN(const driver::Event to, event());
    waits_.push_back(Wait{use, from, to});
    PENSTOCK_TRY(driver_.record(to, stream));
    return driver_.record(from, stream);
  }
  Status wait_ends(driver::Stream stream) {
    if (!running_ || waits_.empty()) return {};
    return driver_.record(waits_.back().to, stream);
  }
  Status use_ends(driver::Stream stream) {
    if (!running_ || !started_) return {};
    ended_ = true;
    return driver_.record(pool_[1], stream);
  }
  [[nodiscard]] const StallSummary& summary() const { return summary_; }

 private:
  struct Wait {
    UseId use;
    driver::Event from;
    driver::Event to;
  };
  Result<driver::Event> event() {
    if (used_ == pool_.size()) {
      room_for(pool_, pool_.size() + 1);
      PENSTOCK_ASSIGN(const driver::Event made, driver_.create_event(true));
      pool_.push_back(made);
    }
    return pool_[used_++];
  }
  Status harvest() {
    StallSummary summary{.kind = kind_, .work = work_};
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

  driver::Driver& driver_;
  std::int32_t every_;
  std::int64_t kind_ = 0;
  int work_ = 0;
  bool running_ = false;  // this iteration is being profiled
  bool started_ = false;  // its first use has begun
  bool ended_ = false;
  std::vector<driver::Event> pool_;  // all events ever made; the first two are start and end
  std::size_t used_ = 0;
  std::vector<Wait> waits_;
  StallSummary summary_;
};

}  // namespace penstock::engine
