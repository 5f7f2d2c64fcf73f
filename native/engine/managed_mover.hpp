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

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
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

struct Span {
  Addr address = 0;
  Bytes bytes = 0;
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

  Status start();
  // Ends after the job in hand; those behind it are dropped.  Its streams are gone when it returns.
  void stop();
  Ticket submit(MoveJob job);
  // The job has been issued: what it sends out is gone, and its event is recorded.
  [[nodiscard]] bool issued(Ticket ticket) const;
  Status wait_issued(Ticket ticket);
  [[nodiscard]] std::size_t queued() const;  // submitted and not issued
  [[nodiscard]] MoverCounters counters() const;

 private:
  struct InFlight {
    driver::Event arrived;
    Bytes bytes;
  };

  void run();
  Status carry_out(const MoveJob& job);
  Status send_out(const Departure& departure);
  Status bring_in(const Span& span, driver::Event arrived);
  Status keep_bound(Bytes bytes);
  Status to_host(const Span& span);
  [[nodiscard]] driver::Stream next_stream();

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
