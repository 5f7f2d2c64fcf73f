// SPDX-License-Identifier: Apache-2.0
// Streams of the emulated GPU: a worker thread each, which does its work in order and, when asked
// to, sleeps a random time before each piece, so that whatever no event orders comes out of order.
// Work given to kDefaultStream runs on the calling thread at once.
// Thread rule: any thread, except that a stream may not be destroyed or waited for by its own work.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "base/status.hpp"
#include "driver/driver.hpp"

namespace penstock::driver {

using HostWork = std::function<void()>;

class HostStream {
 public:
  HostStream(std::uint64_t seed, std::uint32_t max_delay_us);
  ~HostStream();  // after the work already in it
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void enqueue(HostWork work);
  void synchronize();  // with what was enqueued before the call
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
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

class HostStreams {
 public:
  HostStreams(std::uint64_t seed, std::uint32_t max_delay_us);
  ~HostStreams();

  Result<Stream> create();
  Status destroy(Stream stream);
  Status enqueue(Stream stream, HostWork work);
  Status synchronize(Stream stream);
  Status synchronize_all();
  std::int64_t size() const;

 private:
  using Table = std::unordered_map<std::uint64_t, std::shared_ptr<HostStream>>;

  Result<std::shared_ptr<HostStream>> find(Stream stream) const;

  const std::uint64_t seed_;
  const std::uint32_t max_delay_us_;
  const pid_t owner_;  // a forked child has the table but not the threads
  mutable std::mutex mutex_;
  std::unique_ptr<Table> streams_ = std::make_unique<Table>();
  std::uint64_t next_ = 1;
};

}  // namespace penstock::driver
