// SPDX-License-Identifier: Apache-2.0
#include "engine/stream_clock.hpp"

namespace penstock::engine {

StreamClock::~StreamClock() {
  for (const Line& line : lines_) {
    for (const Ended& ended : line.ended) spare_.push_back(ended.event);
  }
  for (const driver::Event event : spare_) (void)driver_.destroy_event(event);
}

std::uint16_t StreamClock::tag(driver::Stream stream) {
  if (recent_ != 0 && lines_[recent_ - 1].stream == stream) return recent_;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].stream == stream) return recent_ = static_cast<std::uint16_t>(i + 1);
  }
  lines_.push_back({.stream = stream, .ended = {}});
  return recent_ = static_cast<std::uint16_t>(lines_.size());
}

std::uint32_t StreamClock::freed(std::uint16_t tag, Bytes bytes, bool capturing) {
  Line& line = lines_[tag - 1];
  const std::uint32_t epoch = line.epoch;
  line.freed += bytes;
  // An event that cannot be recorded now is recorded when it is asked for.
  if (lines_.size() > 1 && line.freed >= kEpochBytes && !capturing) (void)end_epoch(line);
  return epoch;
}

Status StreamClock::end_epoch(Line& line) {
  // Two for one: however long nobody asks, there are no more events than the device is behind.
  for (int i = 0; i < 2 && line.ended.size() > kMostEnded; ++i) {
    PENSTOCK_ASSIGN(const bool over, retire(line));
    if (!over) break;
  }
  PENSTOCK_ASSIGN(const driver::Event event, record(line.stream));
  line.ended.push_back({line.epoch, event});
  ++line.epoch;
  line.freed = 0;
  return {};
}

Result<std::uint32_t> StreamClock::completed(std::uint16_t tag) {
  Line& line = lines_[tag - 1];
  if (line.freed > 0) PENSTOCK_TRY(end_epoch(line));
  while (!line.ended.empty()) {
    PENSTOCK_ASSIGN(const bool over, retire(line));
    if (!over) break;
  }
  return line.completed;
}

Result<bool> StreamClock::retire(Line& line) {
  Status status = driver_.query(line.ended.front().event);
  if (status.code() == Code::kNotReady) return false;
  PENSTOCK_TRY(status);
  line.completed = line.ended.front().epoch;
  spare_.push_back(line.ended.front().event);
  line.ended.pop_front();
  return true;
}

Result<std::uint32_t> StreamClock::wait(std::uint16_t waiter, std::uint16_t tag) {
  PENSTOCK_ASSIGN(const std::uint32_t over, completed(tag));
  Line& line = lines_[tag - 1];
  if (line.ended.empty()) return over;
  PENSTOCK_TRY(driver_.wait(lines_[waiter - 1].stream, line.ended.back().event));
  return line.ended.back().epoch;
}

Status StreamClock::synchronize() {
  for (const Line& line : lines_) {
    PENSTOCK_ASSIGN(const driver::Event event, record(line.stream));
    Status status = driver_.synchronize(event);
    spare_.push_back(event);
    PENSTOCK_TRY(status);
  }
  return {};
}

Result<driver::Event> StreamClock::record(driver::Stream stream) {
  driver::Event event;
  if (spare_.empty()) {
    PENSTOCK_ASSIGN(event, driver_.create_event(false));
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  if (Status status = driver_.record(event, stream); !status.ok()) {
    spare_.push_back(event);
    return status;
  }
  return event;
}

}  // namespace penstock::engine
