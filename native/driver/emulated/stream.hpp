// SPDX-License-Identifier: Apache-2.0
// Streams of the emulated GPU: a worker thread each, which does its work in order and, when asked
// to, sleeps a random time before each piece, so that whatever no event orders comes out of order.
// Work given to kDefaultStream runs on the calling thread at once; kPerThreadStream is made for
// each thread that names it, and stays.  A stream that captures gives what it gets to its capture.
// Thread rule: any thread, except that a stream may not be destroyed or waited for by its own work.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "driver/driver.hpp"
#include "driver/emulated/capture.hpp"
#include "driver/emulated/event.hpp"

namespace penstock::driver {

class HostStream {
 public:
  HostStream(std::uint64_t seed, std::uint32_t max_delay_us)
      : max_delay_us_(max_delay_us), random_(seed), thread_([this] { run(); }) {}
  // After the work already in it.
  ~HostStream() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      arrived_.notify_one();
    }
    thread_.join();
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // To the capture, if there is one.
  Status enqueue(HostWork work) {
    const std::lock_guard lock(mutex_);
    if (capture_ != nullptr) return capture_->add(std::move(work));
    queue_.push_back(std::move(work));
    ++enqueued_;
    arrived_.notify_one();
    return {};
  }
  // With what was enqueued before the call.
  void synchronize() {
    std::unique_lock lock(mutex_);
    const std::uint64_t target = enqueued_;
    finished_.wait(lock, [&] { return completed_ >= target; });
  }
  HostCapturePtr capture() {
    const std::lock_guard lock(mutex_);
    return capture_;
  }
  void set_capture(HostCapturePtr capture) {
    const std::lock_guard lock(mutex_);
    capture_ = std::move(capture);
  }
  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      arrived_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      HostWork work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      delay();
      work();
      work = nullptr;  // what it holds goes before anyone hears that it is done
      lock.lock();
      ++completed_;
      finished_.notify_all();
    }
  }
  void delay() {
    if (max_delay_us_ == 0) return;
    std::uniform_int_distribution<std::uint32_t> distribution(0, max_delay_us_);
    std::this_thread::sleep_for(std::chrono::microseconds(distribution(random_)));
  }

  const std::uint32_t max_delay_us_;
  std::mt19937_64 random_;  // of the worker alone
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable finished_;
  std::deque<HostWork> queue_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t completed_ = 0;
  HostCapturePtr capture_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

class HostStreams {
 public:
  HostStreams(std::uint64_t seed, std::uint32_t max_delay_us, bool reuse_handles)
      : seed_(seed), max_delay_us_(max_delay_us), owner_(getpid()), reuse_handles_(reuse_handles) {}
  ~HostStreams() {
    // In a forked child there is no thread to join, and a lock may be held for ever: let it be.
    if (getpid() != owner_) static_cast<void>(streams_.release());
  }

  Result<Stream> create() {
    const std::lock_guard lock(mutex_);
    const bool again = reuse_handles_ && !destroyed_.empty();
    const std::uint64_t id = again ? destroyed_.back() : next_;
    try {
      streams_->by_handle.emplace(id, make(id));
    } catch (const std::system_error& error) {
      return Status(Code::kDriver, "create_stream: no thread beyond the ",
                    streams_->by_handle.size(), " there are: ", error.what());
    }
    if (again) {
      destroyed_.pop_back();
    } else {
      ++next_;
    }
    return Stream{id};
  }
  Status destroy(Stream stream) {
    if (stream == kPerThreadStream) return invalid("destroy_stream: a default one");
    PENSTOCK_ASSIGN(StreamPtr found, find(stream));
    if (found->is_this_thread()) return invalid("destroy_stream: called by the stream's own work");
    if (const HostCapturePtr capture = found->capture()) capture->invalidate();
    {
      const std::lock_guard lock(mutex_);
      streams_->by_handle.erase(static_cast<std::uint64_t>(stream));
      if (reuse_handles_) destroyed_.push_back(static_cast<std::uint64_t>(stream));
    }
    found->synchronize();
    return {};  // the last owner joins the thread, outside the lock
  }
  Status enqueue(Stream stream, HostWork work) {
    if (is_default(stream)) {
      work();
      return {};
    }
    PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
    return found->enqueue(std::move(work));
  }
  Result<HostRecordingPtr> record(Stream stream) {
    PENSTOCK_ASSIGN(HostCapturePtr capture, this->capture(stream));
    if (capture != nullptr) {
      PENSTOCK_TRY(capture->add([] {}));
      return std::make_shared<HostRecording>(std::move(capture));
    }
    auto recording = std::make_shared<HostRecording>();
    PENSTOCK_TRY(enqueue(stream, [recording] { recording->complete(); }));
    return recording;
  }
  // Between what is captured and what is not there is no order; an event of a capture takes the
  // waiting stream into it.
  Status wait(Stream stream, const HostRecordingPtr& recording) {
    PENSTOCK_ASSIGN(const HostCapturePtr own, capture(stream));
    const HostCapturePtr other = recording == nullptr ? own : recording->capture();
    if (own != nullptr && own != other) return conflicts("wait", own);
    if (recording == nullptr) return {};
    if (own == other) {
      if (own != nullptr) return own->add([] {});
      return enqueue(stream, [recording] { recording->wait(); });
    }
    if (is_default(stream) || !other->under_way()) return conflicts("wait", other);
    PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
    found->set_capture(other);
    return {};
  }
  Status begin_capture(Stream stream) {
    if (is_default(stream)) return {Code::kUnsupported, "begin_capture: the default stream"};
    PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
    if (found->capture() != nullptr) {
      return invalid("begin_capture: the stream is capturing already");
    }
    found->set_capture(std::make_shared<HostCapture>());
    return {};
  }
  Result<HostGraph> end_capture(Stream stream) {
    PENSTOCK_ASSIGN(const HostCapturePtr ended, capture(stream));
    if (ended == nullptr) return invalid("end_capture: the stream is not capturing");
    for (const StreamPtr& each : all()) {
      if (each->capture() == ended) each->set_capture(nullptr);
    }
    return ended->end();
  }
  Result<HostCapturePtr> capture(Stream stream) {
    if (is_default(stream)) return HostCapturePtr();
    PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
    return found->capture();
  }
  void break_captures() {
    for (const StreamPtr& each : all()) {
      if (const HostCapturePtr capture = each->capture()) capture->invalidate();
    }
  }
  std::int64_t captures() const {
    const std::vector<StreamPtr> streams = all();
    return std::ranges::count_if(streams,
                                 [](const auto& each) { return each->capture() != nullptr; });
  }
  Status synchronize(Stream stream) {
    if (is_default(stream)) return {};
    PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
    if (found->is_this_thread()) return invalid("synchronize: called by the stream's own work");
    if (const HostCapturePtr capture = found->capture()) return conflicts("synchronize", capture);
    found->synchronize();
    return {};
  }
  Status synchronize_all() {
    const std::vector<StreamPtr> streams = all();
    for (const StreamPtr& stream : streams) {
      if (stream->is_this_thread()) {
        return invalid("synchronize_device: called by a stream's own work");
      }
      if (const HostCapturePtr capture = stream->capture()) {
        break_captures();
        return conflicts("synchronize_device", capture);
      }
    }
    for (const StreamPtr& stream : streams) stream->synchronize();
    return {};
  }
  std::int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(streams_->by_handle.size());
  }
  std::int64_t dead_uses() const { return dead_uses_; }

 private:
  using StreamPtr = std::shared_ptr<HostStream>;
  struct Table {
    std::unordered_map<std::uint64_t, StreamPtr> by_handle;
    std::unordered_map<std::thread::id, StreamPtr> by_thread;
  };
  // Below are the handles that mean a default stream.
  static constexpr std::uint64_t kFirst = 16;

  static bool is_default(Stream stream) { return static_cast<std::uint64_t>(stream) < 2; }
  static Status conflicts(const char* call, const HostCapturePtr& capture) {
    capture->invalidate();
    return invalid(call, ": a stream is capturing");
  }
  Result<StreamPtr> find(Stream stream) {
    const auto id = static_cast<std::uint64_t>(stream);
    const std::lock_guard lock(mutex_);
    if (stream == kPerThreadStream) {
      StreamPtr& own = streams_->by_thread[std::this_thread::get_id()];
      if (own == nullptr) own = make(streams_->by_thread.size());
      return own;
    }
    const auto found = streams_->by_handle.find(id);
    if (found != streams_->by_handle.end()) return found->second;
    if (id >= kFirst && id < next_) ++dead_uses_;
    return invalid("no stream ", id);
  }
  StreamPtr make(std::uint64_t salt) const {
    // An odd multiplier spreads neighbouring seeds, so that streams do not delay in step.
    return std::make_shared<HostStream>(seed_ + salt * 0x9E3779B97F4A7C15u, max_delay_us_);
  }
  std::vector<StreamPtr> all() const {
    std::vector<StreamPtr> all;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, stream] : streams_->by_handle) all.push_back(stream);
    for (const auto& [id, stream] : streams_->by_thread) all.push_back(stream);
    return all;
  }

  const std::uint64_t seed_;
  const std::uint32_t max_delay_us_;
  const pid_t owner_;  // a forked child has the table but not the threads
  mutable std::mutex mutex_;
  std::unique_ptr<Table> streams_ = std::make_unique<Table>();
  const bool reuse_handles_;
  std::uint64_t next_ = kFirst;
  std::vector<std::uint64_t> destroyed_;
  std::atomic<std::int64_t> dead_uses_{0};
};

}  // namespace penstock::driver
