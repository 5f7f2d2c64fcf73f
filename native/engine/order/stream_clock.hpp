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
  ~StreamClock() {
    for (const Line& line : lines_) {
      for (const Ended& ended : line.ended) (void)driver_.destroy_event(ended.event);
    }
    for (const driver::Event event : spare_) (void)driver_.destroy_event(event);
  }
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  // The stream's number, from 1.
  Result<std::uint16_t> tag(driver::Stream stream) {
    const bool named = stream != driver::kPerThreadStream;  // by its handle, as long as it is there
    if (named && recent_ != 0 && lines_[recent_ - 1].stream == stream) return recent_;
    const StreamId id = streams_.id(stream);
    Line* line = nullptr;
    for (Line& each : lines_) {
      if (each.id == id) line = &each;
    }
    if (line == nullptr) {
      line = reusable();
      if (line != nullptr) {
        line->gone = false;
      } else if (lines_.size() < kMostTags) {
        line = &lines_.emplace_back();
      } else {
        return Status(Code::kUnsupported, "more than ", kMostTags,
                      " streams hold memory at one time");
      }
    }
    line->stream = stream;
    line->id = id;
    return recent_ = static_cast<std::uint16_t>(line - lines_.data() + 1);
  }
  [[nodiscard]] std::uint16_t last_tag() const { return static_cast<std::uint16_t>(lines_.size()); }
  [[nodiscard]] driver::Stream stream(std::uint16_t tag) const { return lines_[tag - 1].stream; }
  // The stream is about to be destroyed.
  Status stream_gone(driver::Stream stream) {
    const StreamId id = streams_.id(stream);
    Status status;
    for (Line& line : lines_) {
      if (line.id != id) continue;
      status = end_epoch(line);  // while it can still be named
      line.gone = status.ok();
    }
    recent_ = 0;
    streams_.gone(stream);
    return status.code() == Code::kNotReady ? Status{} : status;
  }

  // The epoch in which `tag` frees so many bytes now.  Records an event now and then, unless a
  // capture is under way, in which events mean something else.
  std::uint32_t freed(std::uint16_t tag, Bytes bytes, bool capturing) {
    Line& line = lines_[tag - 1];
    if (line.gone) return line.epoch - 1;  // all its work is older than the event that ended this
    const std::uint32_t epoch = line.epoch;
    line.freed += bytes;
    // An event that cannot be recorded now is recorded when it is asked for.
    if (lines_.size() > 1 && line.freed >= kEpochBytes && !capturing &&
        streams_.reachable(line.id)) {
      (void)guarded([&] { return end_epoch(line); });
    }
    return epoch;
  }
  // The last epoch of `tag` that is over; ends the present one if something was freed in it.
  Result<std::uint32_t> completed(std::uint16_t tag) {
    Line& line = lines_[tag - 1];
    // Of a stream out of reach one would have to wait for everything: wait() does.
    if (line.freed > 0 && streams_.reachable(line.id)) {
      const Status status = end_epoch(line);
      if (status.code() != Code::kNotReady) PENSTOCK_TRY(status);
    }
    while (!line.ended.empty()) {
      PENSTOCK_ASSIGN(const bool over, retire(line));
      if (!over) break;
    }
    return line.completed;
  }
  // `waiter` waits for all that `tag` has been given: every epoch up to the one returned.
  Result<std::uint32_t> wait(std::uint16_t waiter, std::uint16_t tag) {
    Line& line = lines_[tag - 1];
    if (line.freed > 0 && !streams_.reachable(line.id)) {
      const Status status = end_epoch(line);  // waits for the device
      if (status.code() != Code::kNotReady) PENSTOCK_TRY(status);
    }
    PENSTOCK_ASSIGN(const std::uint32_t over, completed(tag));
    const Line& behind = lines_[waiter - 1];
    if (line.ended.empty() || streams_.capturing(behind.id)) return over;
    PENSTOCK_TRY(driver_.wait(behind.stream, line.ended.back().event));
    return line.ended.back().epoch;
  }
  // The calling thread waits for all work given to all streams so far.  False: it cannot, since a
  // stream captures.
  Result<bool> synchronize() {
    for (Line& line : lines_) {
      if (line.gone) {
        if (!line.ended.empty()) PENSTOCK_TRY(driver_.synchronize(line.ended.back().event));
        continue;
      }
      const Result<driver::Event> event = record(line);
      if (event.status().code() == Code::kNotReady) return false;
      PENSTOCK_TRY(event.status());
      Status status = driver_.synchronize(event.value());
      give_back(event.value());
      PENSTOCK_TRY(status);
    }
    return true;
  }

  // An event of the work given to a stream so far; give it back when it has been waited for.
  // kNotReady where there can be none before a capture has ended.
  Result<driver::Event> record(std::uint16_t tag) {
    Line& line = lines_[tag - 1];
    if (!line.gone) return record(line);
    // Its own last event may be used again before the caller has waited: wait for it here.
    if (!line.ended.empty()) PENSTOCK_TRY(driver_.synchronize(line.ended.back().event));
    return driver_.create_event(false);  // never recorded counts as complete
  }
  // Where there is no memory for the list, there is one event less.
  void give_back(driver::Event event) noexcept {
    const Status kept = guarded([&] { return spare_.push_back(event), Status{}; });
    if (!kept.ok()) (void)driver_.destroy_event(event);
  }

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
  Status end_epoch(Line& line) {
    // Two for one: however long nobody asks, there are no more events than the device is behind.
    for (int i = 0; i < 2 && line.ended.size() > kMostEnded; ++i) {
      PENSTOCK_ASSIGN(const bool over, retire(line));
      if (!over) break;
    }
    line.ended.push_back({line.epoch, {}});
    const Result<driver::Event> event = guarded([&] { return record(line); });
    if (!event.ok()) {
      line.ended.pop_back();
      return event.status();
    }
    line.ended.back().event = event.value();
    ++line.epoch;
    line.freed = 0;
    line.gone = streams_.destroyed(line.id);
    return {};
  }
  // Whether the oldest event has happened; it is spare then.
  Result<bool> retire(Line& line) {
    const Ended oldest = line.ended.front();
    Status status = driver_.query(oldest.event);
    if (status.code() == Code::kNotReady) return false;
    PENSTOCK_TRY(status);
    line.completed = oldest.epoch;
    line.ended.pop_front();
    give_back(oldest.event);
    return true;
  }
  Result<driver::Event> record(Line& line) {
    if (!streams_.reachable(line.id)) {
      PENSTOCK_ASSIGN(const bool waited, streams_.wait_for_device());
      if (!waited) return Status(Code::kNotReady, "a stream captures");
      return driver_.create_event(false);
    }
    if (streams_.capturing(line.id)) return Status(Code::kNotReady, "the stream captures");
    PENSTOCK_ASSIGN(const driver::Event event, spare());
    if (Status status = driver_.record(event, line.stream); !status.ok()) {
      give_back(event);
      return status;
    }
    return event;
  }
  Result<driver::Event> spare() {
    if (spare_.empty()) return driver_.create_event(false);
    const driver::Event event = spare_.back();
    spare_.pop_back();
    return event;
  }
  // The line of a stream that is gone, with nothing of it under way.
  Line* reusable() {
    for (Line& line : lines_) {
      if (!line.gone) continue;
      while (!line.ended.empty()) {
        const Result<bool> over = retire(line);
        if (!over.ok() || !over.value()) break;
      }
      if (line.ended.empty()) return &line;
    }
    return nullptr;
  }

  driver::Driver& driver_;
  Streams streams_;
  std::vector<Line> lines_;
  std::vector<driver::Event> spare_;
  std::uint16_t recent_ = 0;
};

}  // namespace penstock::engine
