// SPDX-License-Identifier: Apache-2.0
// Events of the emulated GPU.  Each record() makes a new HostRecording, and a wait holds the one
// that was the last when wait() was called: that is how recording anew cannot move a wait.
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/status.hpp"
#include "driver/driver.hpp"
#include "driver/emulated/capture.hpp"

namespace penstock::driver {

// One moment in one stream: pending until the stream reaches it.  One in a capture orders what is
// captured behind it and never comes.
class HostRecording {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit HostRecording(HostCapturePtr capture = nullptr) : capture_(std::move(capture)) {}
  const HostCapturePtr& capture() const { return capture_; }

  void complete() {
    when_ = std::chrono::steady_clock::now();
    done_ = true;
    done_.notify_all();
  }
  void wait() const { done_.wait(false); }
  bool done() const { return done_; }
  Time when() const { return when_; }  // only once done

 private:
  const HostCapturePtr capture_;
  std::atomic<bool> done_{false};
  Time when_;
};

using HostRecordingPtr = std::shared_ptr<HostRecording>;

class HostEvents {
 public:
  Event create(bool timing) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t id = next_++;
    events_.emplace(id, State{.timing = timing, .last = nullptr});
    return Event{id};
  }
  // Waits that hold a recording keep it.
  Status destroy(Event event) {
    const std::lock_guard lock(mutex_);
    if (events_.erase(static_cast<std::uint64_t>(event)) == 1) return {};
    return no_such(event);
  }
  // From now on the event means this recording, which whoever carries the work completes.
  Status record(Event event, HostRecordingPtr recording) {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(static_cast<std::uint64_t>(event));
    if (found == events_.end()) return no_such(event);
    found->second.last = std::move(recording);
    return {};
  }
  // Null when never recorded.
  Result<HostRecordingPtr> last(Event event) const {
    PENSTOCK_ASSIGN(const State state, find(event));
    return state.last;
  }
  Status query(Event event) const {
    PENSTOCK_ASSIGN(const HostRecordingPtr recording, last(event));
    PENSTOCK_TRY(not_captured(recording));
    if (recording == nullptr || recording->done()) return {};
    return Status(Code::kNotReady, "event ", static_cast<std::uint64_t>(event), " is not complete");
  }
  Status synchronize(Event event) const {
    PENSTOCK_ASSIGN(const HostRecordingPtr recording, last(event));
    PENSTOCK_TRY(not_captured(recording));
    if (recording != nullptr) recording->wait();
    return {};
  }
  Result<float> elapsed_ms(Event from, Event to) const {
    PENSTOCK_ASSIGN(const HostRecording::Time begin, time_of(from));
    PENSTOCK_ASSIGN(const HostRecording::Time end, time_of(to));
    return std::chrono::duration<float, std::milli>(end - begin).count();
  }
  std::int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(events_.size());
  }

 private:
  struct State {
    bool timing = false;
    HostRecordingPtr last;
  };

  static Status no_such(Event event) {
    return invalid("no event ", static_cast<std::uint64_t>(event));
  }
  // An event of a capture can neither be asked for nor waited for by the host.
  static Status not_captured(const HostRecordingPtr& recording) {
    if (recording == nullptr || recording->capture() == nullptr) return {};
    recording->capture()->invalidate();
    return invalid("the event was last recorded in a capture");
  }
  Result<State> find(Event event) const {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(static_cast<std::uint64_t>(event));
    if (found != events_.end()) return found->second;
    return no_such(event);
  }
  Result<HostRecording::Time> time_of(Event event) const {
    PENSTOCK_ASSIGN(const State state, find(event));
    const auto id = static_cast<std::uint64_t>(event);
    if (!state.timing) return invalid("event ", id, " was created without timing");
    if (state.last == nullptr) return invalid("event ", id, " was never recorded");
    PENSTOCK_TRY(not_captured(state.last));
    if (!state.last->done()) return Status(Code::kNotReady, "event ", id, " is not complete");
    return state.last->when();
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, State> events_;
  std::uint64_t next_ = 1;
};

}  // namespace penstock::driver
