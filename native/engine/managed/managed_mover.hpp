// SPDX-License-Identifier: Apache-2.0
// Moves spans of managed memory onto the device and off it again, one job after the other, from a
// thread of its own: cuMemPrefetchAsync blocks its caller for the whole transfer (measured on an
// H200), and the thread that launches kernels must not stand still for that.
//
// Invariant: what a job sends out has left the device before what it brings in is asked for, and
// nothing is sent out while work given to a stream may still read it.  So whoever submits jobs
// whose sum stays within a budget never holds more than that budget on the device. Thread rule:
// every public function from any thread.  After a failed driver call no further job is carried out;
// the failure is what every later wait returns.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "driver/driver.hpp"

namespace penstock::engine {

enum class Eviction {
  // Drop the device's duplicate: take ReadMostly away, by which duplicates collapse to the
  // preferred
  // location, the host.  Copies nothing.  (A prefetch to the host would leave a ReadMostly span on
  // the device: measured on an H200.)
  kCollapse,
  // Prefetch to the host: 17 GB/s on an H200, and the span is copied even when it is clean.
  kPrefetchToHost,
};

struct MoverOptions {
  Eviction eviction = Eviction::kCollapse;
  bool read_mostly = true;   // reading duplicates, so that the host's copy stays current
  std::int32_t streams = 1;  // to prefetch on, in turn; 0 = the default stream
  Bytes max_in_flight = 0;   // of prefetches that have not arrived; 0 = no bound.  A single span
                             // larger than this goes alone
};

// A span that leaves, and the events that the host waits for first: its arrival and its last uses.
struct Departure {
  Span span;
  std::vector<driver::Event> after;
};

struct MoveJob {
  std::vector<Departure> out;
  Span in;                  // may be empty
  driver::Event arrived{};  // recorded behind the prefetch of `in`
};

struct MoverCounters {
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;  // copied out; a collapse copies nothing
  Bytes evicted_bytes = 0;
  std::uint64_t prefetches = 0;
  std::uint64_t evictions = 0;
  Bytes resident = 0;
  Bytes peak = 0;
};

class ManagedMover {
 public:
  using Ticket = std::uint64_t;  // 0 = no job

  ManagedMover(driver::Driver& driver, const MoverOptions& options)
      : driver_(driver), options_(options) {}
  ~ManagedMover() { stop(); }
  ManagedMover(const ManagedMover&) = delete;
  ManagedMover& operator=(const ManagedMover&) = delete;

  Status start() {
    streams_.reserve(nth(options_.streams));
    for (std::int32_t i = 0; i < options_.streams; ++i) {
      PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
      streams_.push_back(stream);
    }
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return Status(Code::kInternal, "no thread for moving managed memory: ", error.what());
    }
    return {};
  }
  // Ends after the job in hand; those behind it are dropped.  Its streams are gone when it returns.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    arrived_.notify_all();
    if (thread_.joinable()) thread_.join();
    for (const driver::Stream stream : streams_) {
      (void)driver_.synchronize(stream);
      (void)driver_.destroy_stream(stream);
    }
    streams_.clear();
    if (options_.streams == 0) (void)driver_.synchronize(driver::kDefaultStream);
  }
  Ticket submit(MoveJob job) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) queue_.push_back(std::move(job));
    arrived_.notify_one();
    return ++submitted_;
  }
  // The job has been issued: what it sends out is gone, and its event is recorded.
  [[nodiscard]] bool issued(Ticket ticket) const {
    const std::lock_guard lock(mutex_);
    return issued_ >= ticket;
  }
  Status wait_issued(Ticket ticket) {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return issued_ >= ticket || !failure_.ok(); });
    return issued_ >= ticket ? Status{} : failure_;
  }
  // submitted and not issued
  [[nodiscard]] std::size_t queued() const {
    const std::lock_guard lock(mutex_);
    return submitted_ - issued_;
  }
  [[nodiscard]] MoverCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  struct InFlight {
    driver::Event arrived;
    Bytes bytes;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      arrived_.wait(lock, [this] { return closing_ || (!queue_.empty() && failure_.ok()); });
      if (closing_) return;
      const MoveJob job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      Status status = guarded([&] { return carry_out(job); });
      lock.lock();
      if (status.ok()) {
        ++issued_;
      } else {
        failure_ = std::move(status);
      }
      progress_.notify_all();
    }
  }
  Status carry_out(const MoveJob& job) {
    for (const Departure& departure : job.out) PENSTOCK_TRY(send_out(departure));
    return job.in.bytes == 0 ? Status{} : bring_in(job.in, job.arrived);
  }
  Status send_out(const Departure& departure) {
    for (const driver::Event event : departure.after) PENSTOCK_TRY(driver_.synchronize(event));
    const auto& [address, bytes] = departure.span;
    if (options_.read_mostly) {
      PENSTOCK_TRY(driver_.managed_advise(address, bytes, driver::Advice::kUnsetReadMostly));
    }
    if (options_.eviction == Eviction::kPrefetchToHost) PENSTOCK_TRY(to_host(departure.span));
    const std::lock_guard lock(mutex_);
    ++counters_.evictions;
    counters_.evicted_bytes += bytes;
    if (!options_.read_mostly) counters_.bytes_out += bytes;
    counters_.resident -= bytes;
    return {};
  }
  Status bring_in(const Span& span, driver::Event arrived) {
    PENSTOCK_TRY(keep_bound(span.bytes));
    if (options_.read_mostly) {
      PENSTOCK_TRY(driver_.managed_advise(span.address, span.bytes, driver::Advice::kReadMostly));
    }
    {
      const std::lock_guard lock(mutex_);
      counters_.resident += span.bytes;
      counters_.peak = std::max(counters_.peak, counters_.resident);
    }
    const driver::Stream stream = next_stream();
    PENSTOCK_TRY(
        driver_.managed_prefetch(span.address, span.bytes, driver::Place::kDevice, stream));
    PENSTOCK_TRY(driver_.record(arrived, stream));
    in_flight_.push_back({arrived, span.bytes});
    in_flight_bytes_ += span.bytes;
    const std::lock_guard lock(mutex_);
    ++counters_.prefetches;
    counters_.bytes_in += span.bytes;
    return {};
  }
  // Forget what has arrived, and wait for the oldest until `bytes` more are allowed.
  Status keep_bound(Bytes bytes) {
    while (!in_flight_.empty()) {
      const InFlight& oldest = in_flight_.front();
      const Status over = driver_.query(oldest.arrived);
      if (over.code() == Code::kNotReady) {
        const bool fits =
            options_.max_in_flight == 0 || in_flight_bytes_ + bytes <= options_.max_in_flight;
        if (fits) return {};
        PENSTOCK_TRY(driver_.synchronize(oldest.arrived));
      } else {
        PENSTOCK_TRY(over);
      }
      in_flight_bytes_ -= oldest.bytes;
      in_flight_.pop_front();
    }
    return {};
  }
  // The room is only there when the last byte has left.
  Status to_host(const Span& span) {
    const driver::Stream stream = next_stream();
    PENSTOCK_TRY(driver_.managed_prefetch(span.address, span.bytes, driver::Place::kHost, stream));
    return driver_.synchronize(stream);
  }
  [[nodiscard]] driver::Stream next_stream() {
    if (streams_.empty()) return driver::kDefaultStream;
    return streams_[turn_++ % streams_.size()];
  }

  driver::Driver& driver_;
  const MoverOptions options_;

  // The thread's own.
  std::vector<driver::Stream> streams_;
  std::size_t turn_ = 0;
  std::deque<InFlight> in_flight_;
  Bytes in_flight_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;   // a job, or the end
  std::condition_variable progress_;  // a job was issued, or failed
  std::deque<MoveJob> queue_;
  Ticket submitted_ = 0;
  Ticket issued_ = 0;
  bool closing_ = false;
  Status failure_;
  MoverCounters counters_;

  std::thread thread_;
};

}  // namespace penstock::engine
