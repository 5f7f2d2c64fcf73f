// SPDX-License-Identifier: Apache-2.0
#include "driver/emulated/event.hpp"

#include <utility>

#include "driver/text.hpp"

namespace penstock::driver {
namespace {

Status no_such(Event event) {
  return {Code::kInvalidArgument, text("no event ", static_cast<std::uint64_t>(event))};
}

// An event of a capture can neither be asked for nor waited for by the host.
Status not_captured(const HostRecordingPtr& recording) {
  if (recording == nullptr || recording->capture() == nullptr) return {};
  recording->capture()->invalidate();
  return {Code::kInvalidArgument, "the event was last recorded in a capture"};
}

}  // namespace

void HostRecording::complete() {
  const std::lock_guard lock(mutex_);
  when_ = std::chrono::steady_clock::now();
  done_ = true;
  completed_.notify_all();
}

void HostRecording::wait() const {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [this] { return done_; });
}

bool HostRecording::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

HostRecording::Time HostRecording::when() const {
  const std::lock_guard lock(mutex_);
  return when_;
}

Event HostEvents::create(bool timing) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_++;
  events_.emplace(id, State{.timing = timing, .last = nullptr});
  return Event{id};
}

Status HostEvents::destroy(Event event) {
  const std::lock_guard lock(mutex_);
  if (events_.erase(static_cast<std::uint64_t>(event)) == 1) return {};
  return no_such(event);
}

Result<HostEvents::State> HostEvents::find(Event event) const {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(static_cast<std::uint64_t>(event));
  if (found != events_.end()) return found->second;
  return no_such(event);
}

Status HostEvents::record(Event event, HostRecordingPtr recording) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(static_cast<std::uint64_t>(event));
  if (found == events_.end()) return no_such(event);
  found->second.last = std::move(recording);
  return {};
}

Result<HostRecordingPtr> HostEvents::last(Event event) const {
  PENSTOCK_ASSIGN(const State state, find(event));
  return state.last;
}

Status HostEvents::query(Event event) const {
  PENSTOCK_ASSIGN(const HostRecordingPtr recording, last(event));
  PENSTOCK_TRY(not_captured(recording));
  if (recording == nullptr || recording->done()) return {};
  return {Code::kNotReady, text("event ", static_cast<std::uint64_t>(event), " is not complete")};
}

Status HostEvents::synchronize(Event event) const {
  PENSTOCK_ASSIGN(const HostRecordingPtr recording, last(event));
  PENSTOCK_TRY(not_captured(recording));
  if (recording != nullptr) recording->wait();
  return {};
}

Result<HostRecording::Time> HostEvents::time_of(Event event) const {
  PENSTOCK_ASSIGN(const State state, find(event));
  const auto id = static_cast<std::uint64_t>(event);
  if (!state.timing) {
    return Status(Code::kInvalidArgument, text("event ", id, " was created without timing"));
  }
  if (state.last == nullptr) {
    return Status(Code::kInvalidArgument, text("event ", id, " was never recorded"));
  }
  PENSTOCK_TRY(not_captured(state.last));
  if (!state.last->done()) {
    return Status(Code::kNotReady, text("event ", id, " is not complete"));
  }
  return state.last->when();
}

Result<float> HostEvents::elapsed_ms(Event from, Event to) const {
  PENSTOCK_ASSIGN(const HostRecording::Time begin, time_of(from));
  PENSTOCK_ASSIGN(const HostRecording::Time end, time_of(to));
  return std::chrono::duration<float, std::milli>(end - begin).count();
}

std::int64_t HostEvents::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(events_.size());
}

}  // namespace penstock::driver
