// SPDX-License-Identifier: Apache-2.0
// Events of the emulated GPU.  Each record() makes a new HostRecording, and a wait holds the one
// that was the last when wait() was called: that is how recording anew cannot move a wait.
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
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

  void complete();
  void wait() const;
  bool done() const;
  Time when() const;  // only once done

 private:
  const HostCapturePtr capture_;
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  bool done_ = false;
  Time when_;
};

using HostRecordingPtr = std::shared_ptr<HostRecording>;

class HostEvents {
 public:
  Event create(bool timing);
  Status destroy(Event event);  // waits that hold a recording keep it
  // From now on the event means this recording, which whoever carries the work completes.
  Status record(Event event, HostRecordingPtr recording);
  Result<HostRecordingPtr> last(Event event) const;  // null when never recorded
  Status query(Event event) const;
  Status synchronize(Event event) const;
  Result<float> elapsed_ms(Event from, Event to) const;
  std::int64_t size() const;

 private:
  struct State {
    bool timing = false;
    HostRecordingPtr last;
  };

  Result<State> find(Event event) const;
  Result<HostRecording::Time> time_of(Event event) const;

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, State> events_;
  std::uint64_t next_ = 1;
};

}  // namespace penstock::driver
