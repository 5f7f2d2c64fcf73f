// SPDX-License-Identifier: Apache-2.0
#include "engine/order/stream_clock.hpp"

#include <string>

namespace penstock::engine {

StreamClock::~StreamClock() {
  for (const Line& line : lines_) {
    for (const Ended& ended : line.ended) (void)driver_.destroy_event(ended.event);
  }
  for (const driver::Event event : spare_) (void)driver_.destroy_event(event);
}

Result<std::uint16_t> StreamClock::tag(driver::Stream stream) {
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
      return Status(Code::kUnsupported,
                    "more than " + std::to_string(kMostTags) + " streams hold memory at one time");
    }
  }
  line->stream = stream;
  line->id = id;
  return recent_ = static_cast<std::uint16_t>(line - lines_.data() + 1);
}

// The line of a stream that is gone, with nothing of it under way.
StreamClock::Line* StreamClock::reusable() {
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

Status StreamClock::stream_gone(driver::Stream stream) {
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

std::uint32_t StreamClock::freed(std::uint16_t tag, Bytes bytes, bool capturing) {
  Line& line = lines_[tag - 1];
  if (line.gone) return line.epoch - 1;  // all its work is older than the event that ended this
  const std::uint32_t epoch = line.epoch;
  line.freed += bytes;
  // An event that cannot be recorded now is recorded when it is asked for.
  if (lines_.size() > 1 && line.freed >= kEpochBytes && !capturing && streams_.reachable(line.id)) {
    (void)end_epoch(line);
  }
  return epoch;
}

Status StreamClock::end_epoch(Line& line) {
  // Two for one: however long nobody asks, there are no more events than the device is behind.
  for (int i = 0; i < 2 && line.ended.size() > kMostEnded; ++i) {
    PENSTOCK_ASSIGN(const bool over, retire(line));
    if (!over) break;
  }
  PENSTOCK_ASSIGN(const driver::Event event, record(line));
  line.ended.push_back({line.epoch, event});
  ++line.epoch;
  line.freed = 0;
  line.gone = streams_.destroyed(line.id);
  return {};
}

Result<std::uint32_t> StreamClock::completed(std::uint16_t tag) {
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

Result<bool> StreamClock::retire(Line& line) {
  const Ended oldest = line.ended.front();
  Status status = driver_.query(oldest.event);
  if (status.code() == Code::kNotReady) return false;
  PENSTOCK_TRY(status);
  line.completed = oldest.epoch;
  line.ended.pop_front();
  give_back(oldest.event);
  return true;
}

Result<std::uint32_t> StreamClock::wait(std::uint16_t waiter, std::uint16_t tag) {
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

Result<bool> StreamClock::synchronize() {
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

Result<driver::Event> StreamClock::record(std::uint16_t tag) {
  Line& line = lines_[tag - 1];
  if (!line.gone) return record(line);
  // Its own last event may be used again before the caller has waited: wait for it here.
  if (!line.ended.empty()) PENSTOCK_TRY(driver_.synchronize(line.ended.back().event));
  return driver_.create_event(false);  // never recorded counts as complete
}

Result<driver::Event> StreamClock::record(Line& line) {
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

Result<driver::Event> StreamClock::spare() {
  if (spare_.empty()) return driver_.create_event(false);
  const driver::Event event = spare_.back();
  spare_.pop_back();
  return event;
}

// Where there is no memory for the list, there is one event less.
void StreamClock::give_back(driver::Event event) noexcept {
  try {
    spare_.push_back(event);
  } catch (...) {
    (void)driver_.destroy_event(event);
  }
}

}  // namespace penstock::engine
