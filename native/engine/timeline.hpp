// SPDX-License-Identifier: Apache-2.0
// Points in a stream, as numbers.  record() gives a tick; other streams and the host can wait for a
// tick, or ask whether it has been reached.  The events behind it are a ring: a tick older than the
// ring is represented by the oldest event still in it, which is later, so that a wait can only be
// longer than needed, never shorter.  Not thread-safe: the pager's lock covers it.
#pragma once

#include <array>
#include <cstdint>

#include "driver/driver.hpp"

namespace penstock::engine {

using Tick = std::uint64_t;  // 0 = before everything

class Timeline {
 public:
  Timeline(driver::Driver& driver, driver::Stream stream) : driver_(driver), stream_(stream) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  [[nodiscard]] driver::Stream stream() const { return stream_; }

  // Mark the work given to the stream so far.
  Result<Tick> record();
  // Make `stream` wait for `tick` of this one; nothing when it is known to have been reached.
  Status make_wait(driver::Stream stream, Tick tick);
  // The host waits.
  Status synchronize(Tick tick);
  // Ask the driver whether `tick` has been reached.
  Result<bool> reached(Tick tick);
  [[nodiscard]] Tick latest() const { return latest_; }

 private:
  static constexpr Tick kRing = 256;
  [[nodiscard]] Tick standing_for(Tick tick) const;
  [[nodiscard]] driver::Event event_of(Tick tick) const { return events_[(tick - 1) % kRing]; }

  driver::Driver& driver_;
  driver::Stream stream_;
  std::array<driver::Event, kRing> events_{};
  Tick created_ = 0;  // events_[0 .. created_) exist
  Tick latest_ = 0;
  Tick reached_ = 0;
};

}  // namespace penstock::engine
