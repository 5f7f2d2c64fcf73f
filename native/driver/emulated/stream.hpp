// SPDX-License-Identifier: Apache-2.0
// Streams of the emulated GPU: a worker thread each, which does its work in order and, when asked
// to, sleeps a random time before each piece, so that whatever no event orders comes out of order.
// Work given to kDefaultStream runs on the calling thread at once; kPerThreadStream is made for
// each thread that names it, and stays.  A stream that captures gives what it gets to its capture.
// Thread rule: any thread, except that a stream may not be destroyed or waited for by its own work.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "driver/driver.hpp"
#include "driver/emulated/capture.hpp"
#include "driver/emulated/event.hpp"

namespace penstock::driver {

class HostStream {
 public:
  HostStream(std::uint64_t seed, std::uint32_t max_delay_us);
  ~HostStream();  // after the work already in it
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // To the capture, if there is one.
  Status enqueue(HostWork work);
  void synchronize();  // with what was enqueued before the call
  HostCapturePtr capture();
  void set_capture(HostCapturePtr capture);
  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  void run();
  void delay();

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
  HostStreams(std::uint64_t seed, std::uint32_t max_delay_us, bool reuse_handles);
  ~HostStreams();

  Result<Stream> create();
  Status destroy(Stream stream);
  Status enqueue(Stream stream, HostWork work);
  Result<HostRecordingPtr> record(Stream stream);
  Status wait(Stream stream, const HostRecordingPtr& recording);
  Status begin_capture(Stream stream);
  Result<HostGraph> end_capture(Stream stream);
  Result<HostCapturePtr> capture(Stream stream);
  void break_captures();
  std::int64_t captures() const;
  Status synchronize(Stream stream);
  Status synchronize_all();
  std::int64_t size() const;
  std::int64_t dead_uses() const { return dead_uses_; }

 private:
  using StreamPtr = std::shared_ptr<HostStream>;
  struct Table {
    std::unordered_map<std::uint64_t, StreamPtr> by_handle;
    std::unordered_map<std::thread::id, StreamPtr> by_thread;
  };
  // Below are the handles that mean a default stream.
  static constexpr std::uint64_t kFirst = 16;

  Result<StreamPtr> find(Stream stream);
  StreamPtr make(std::uint64_t salt) const;
  std::vector<StreamPtr> all() const;

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
