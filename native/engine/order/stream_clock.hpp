// SPDX-License-Identifier: Apache-2.0
// When the work of a stream is over, in epochs: an event ends one.  What a stream freed in an epoch
// may go to another stream once that event has happened, or if that stream waits for it.
//
// A program with one stream records no event here.  With several, one is recorded for every 32 MiB
// that a stream frees, so that another stream waits for little more than it must.  The tag of a
// stream that was destroyed goes to a new one when its last event has happened: what it freed is
// then as good as the new one's own.  The caller locks.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "driver/driver.hpp"
#include "engine/order/streams.hpp"

namespace penstock::engine {

class StreamClock {
 public:
  explicit StreamClock(driver::Driver& driver) : driver_(driver), streams_(driver) {}
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  // The stream's number, from 1.
  Result<std::uint16_t> tag(driver::Stream stream);
  [[nodiscard]] std::uint16_t last_tag() const { return static_cast<std::uint16_t>(lines_.size()); }
  [[nodiscard]] driver::Stream stream(std::uint16_t tag) const { return lines_[tag - 1].stream; }
  // The stream is about to be destroyed.
  Status stream_gone(driver::Stream stream);

  // The epoch in which `tag` frees so many bytes now.  Records an event now and then, unless a
  // capture is under way, in which events mean something else.
  std::uint32_t freed(std::uint16_t tag, Bytes bytes, bool capturing);
  // The last epoch of `tag` that is over; ends the present one if something was freed in it.
  Result<std::uint32_t> completed(std::uint16_t tag);
  // `waiter` waits for all that `tag` has been given: every epoch up to the one returned.
  Result<std::uint32_t> wait(std::uint16_t waiter, std::uint16_t tag);
  // The calling thread waits for all work given to all streams so far.  False: it cannot, since a
  // stream captures.
  Result<bool> synchronize();

  // An event of the work given to a stream so far; give it back when it has been waited for.
  // kNotReady where there can be none before a capture has ended.
  Result<driver::Event> record(std::uint16_t tag);
  void give_back(driver::Event event) noexcept;

 private:
  static constexpr Bytes kEpochBytes = 32 * kMiB;
  // Beyond so many events that nobody asked for, those that have happened are used again.
  static constexpr std::size_t kMostEnded = 16;
  static constexpr std::size_t kMostTags = 0xfffe;
  struct Ended {
    std::uint32_t epoch;
    driver::Event event;
  };
  struct Line {
    driver::Stream stream{};
    StreamId id{};
    std::uint32_t epoch = 1;
    std::uint32_t completed = 0;
    Bytes freed = 0;    // in this epoch
    bool gone = false;  // destroyed, and its last epoch has ended
    std::deque<Ended> ended;
  };
  Status end_epoch(Line& line);
  // Whether the oldest event has happened; it is spare then.
  Result<bool> retire(Line& line);
  Result<driver::Event> record(Line& line);
  Result<driver::Event> spare();
  Line* reusable();

  driver::Driver& driver_;
  Streams streams_;
  std::vector<Line> lines_;
  std::vector<driver::Event> spare_;
  std::uint16_t recent_ = 0;
};

}  // namespace penstock::engine
