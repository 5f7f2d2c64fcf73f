// SPDX-License-Identifier: Apache-2.0
// Points in a stream, as numbers.  record() gives a tick; other streams and the host can wait for a
// tick, or ask whether it has been reached.  The events behind it are a ring: a tick older than the
// ring is represented by the oldest event still in it, which is later, so that a wait can only be
// longer than needed, never shorter.  One thread at a time records; any may wait and ask meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "driver/driver.hpp"

namespace penstock::engine {

using Tick = std::uint64_t;  // 0 = before everything

class Timeline {
 public:
  Timeline(driver::Driver& driver, driver::Stream stream) : driver_(driver), stream_(stream) {}
  ~Timeline() {
    for (Tick i = 0; i < created_; ++i) (void)driver_.destroy_event(events_[i]);
  }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  [[nodiscard]] driver::Stream stream() const { return stream_; }

  // Mark the work given to the stream so far.
  Result<Tick> record() {
    const Tick next = latest() + 1;
    if (created_ < std::min(next, kRing)) {
      PENSTOCK_ASSIGN(events_[created_], driver_.create_event(false));
      ++created_;
    }
    PENSTOCK_TRY(driver_.record(event_of(next), stream_));
    latest_.store(next, std::memory_order_release);
    return next;
  }
  // Make `stream` wait for `tick` of this one; nothing when it is known to have been reached.
  Status make_wait(driver::Stream stream, Tick tick) {
    if (tick <= reached_ || stream == stream_) return {};
    return driver_.wait(stream, event_of(standing_for(tick)));
  }
  // The host waits.
  Status synchronize(Tick tick) {
    if (tick <= reached_) return {};
    const Tick standing = standing_for(tick);
    PENSTOCK_TRY(driver_.synchronize(event_of(standing)));
    reached_ = standing;
    return {};
  }
  // Ask the driver whether `tick` has been reached.
  Result<bool> reached(Tick tick) {
    if (tick <= reached_) return true;
    const Tick standing = standing_for(tick);
    const Status status = driver_.query(event_of(standing));
    if (status.code() == Code::kNotReady) return false;
    PENSTOCK_TRY(status);
    reached_ = standing;
    return true;
  }
  [[nodiscard]] Tick latest() const { return latest_.load(std::memory_order_acquire); }
  // Another stream from here on, once the latest tick has been reached: the former ones stay so.
  void go_on_in(driver::Stream stream) { stream_ = stream; }

 private:
  static constexpr Tick kRing = 256;
  [[nodiscard]] Tick standing_for(Tick tick) const {
    const Tick last = latest();
    const Tick oldest = last >= kRing ? last - kRing + 1 : 1;
    return std::max(tick, oldest);
  }
  [[nodiscard]] driver::Event event_of(Tick tick) const { return events_[(tick - 1) % kRing]; }

  driver::Driver& driver_;
  driver::Stream stream_;
  std::array<driver::Event, kRing> events_{};
  Tick created_ = 0;             // events_[0 .. created_) exist
  std::atomic<Tick> latest_{0};  // set when its event is there, and recorded
  std::atomic<Tick> reached_{0};
};

}  // namespace penstock::engine
