// SPDX-License-Identifier: Apache-2.0
// How long a stream stood waiting for pages in one iteration, by timing events around each wait.
// Timing events cost the stream a microsecond or two each, so only every Nth iteration is profiled.
#pragma once

#include <cstdint>
#include <optional>
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
};

class StallProfile {
 public:
  StallProfile(driver::Driver& driver, std::int32_t every) : driver_(driver), every_(every) {}
  ~StallProfile();
  StallProfile(const StallProfile&) = delete;
  StallProfile& operator=(const StallProfile&) = delete;

  // Call at every iteration boundary; reads what has completed.
  Status next_iteration(std::uint64_t iteration);
  Status use_begins(driver::Stream stream);
  Status wait_begins(UseId use, driver::Stream stream);
  Status wait_ends(driver::Stream stream);
  Status use_ends(driver::Stream stream);
  [[nodiscard]] const StallSummary& summary() const { return summary_; }

 private:
  struct Wait {
    UseId use;
    driver::Event from;
    driver::Event to;
  };
  Result<driver::Event> event();
  Status harvest();

  driver::Driver& driver_;
  std::int32_t every_;
  bool running_ = false;  // this iteration is being profiled
  bool started_ = false;  // its first use has begun
  bool ended_ = false;
  std::vector<driver::Event> pool_;  // all events ever made; the first two are start and end
  std::size_t used_ = 0;
  std::vector<Wait> waits_;
  StallSummary summary_;
};

}  // namespace penstock::engine
