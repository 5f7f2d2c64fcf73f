// SPDX-License-Identifier: Apache-2.0
#include "engine/managed_mover.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

namespace penstock::engine {

using driver::Advice;
using driver::Place;

void ManagedMover::stop() {
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

Status ManagedMover::start() {
  for (std::int32_t i = 0; i < options_.streams; ++i) {
    PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
    streams_.push_back(stream);
  }
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return {Code::kInternal, std::string("no thread for moving managed memory: ") + error.what()};
  }
  return {};
}

ManagedMover::Ticket ManagedMover::submit(MoveJob job) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) queue_.push_back(std::move(job));
  arrived_.notify_one();
  return ++submitted_;
}

bool ManagedMover::issued(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return issued_ >= ticket;
}

Status ManagedMover::wait_issued(Ticket ticket) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return issued_ >= ticket || !failure_.ok(); });
  return issued_ >= ticket ? Status{} : failure_;
}

std::size_t ManagedMover::queued() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(submitted_ - issued_);
}

MoverCounters ManagedMover::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void ManagedMover::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [this] { return closing_ || (!queue_.empty() && failure_.ok()); });
    if (closing_) return;
    const MoveJob job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Status status;
    try {
      status = carry_out(job);
    } catch (const std::exception& error) {
      status = Status(Code::kHostOutOfMemory,
                      std::string("moving managed memory failed: ") + error.what());
    }
    lock.lock();
    if (status.ok()) {
      ++issued_;
    } else {
      failure_ = std::move(status);
    }
    progress_.notify_all();
  }
}

Status ManagedMover::carry_out(const MoveJob& job) {
  for (const Departure& departure : job.out) PENSTOCK_TRY(send_out(departure));
  return job.in.bytes == 0 ? Status{} : bring_in(job.in, job.arrived);
}

Status ManagedMover::send_out(const Departure& departure) {
  for (const driver::Event event : departure.after) PENSTOCK_TRY(driver_.synchronize(event));
  const auto& [address, bytes] = departure.span;
  if (options_.read_mostly) {
    PENSTOCK_TRY(driver_.managed_advise(address, bytes, Advice::kUnsetReadMostly));
  }
  if (options_.eviction == Eviction::kPrefetchToHost) PENSTOCK_TRY(to_host(departure.span));
  const std::lock_guard lock(mutex_);
  ++counters_.evictions;
  counters_.evicted_bytes += bytes;
  if (!options_.read_mostly) counters_.bytes_out += bytes;
  counters_.resident -= bytes;
  return {};
}

// The room is only there when the last byte has left.
Status ManagedMover::to_host(const Span& span) {
  const driver::Stream stream = next_stream();
  PENSTOCK_TRY(driver_.managed_prefetch(span.address, span.bytes, Place::kHost, stream));
  return driver_.synchronize(stream);
}

Status ManagedMover::bring_in(const Span& span, driver::Event arrived) {
  PENSTOCK_TRY(keep_bound(span.bytes));
  if (options_.read_mostly) {
    PENSTOCK_TRY(driver_.managed_advise(span.address, span.bytes, Advice::kReadMostly));
  }
  {
    const std::lock_guard lock(mutex_);
    counters_.resident += span.bytes;
    counters_.peak = std::max(counters_.peak, counters_.resident);
  }
  const driver::Stream stream = next_stream();
  PENSTOCK_TRY(driver_.managed_prefetch(span.address, span.bytes, Place::kDevice, stream));
  PENSTOCK_TRY(driver_.record(arrived, stream));
  in_flight_.push_back({arrived, span.bytes});
  in_flight_bytes_ += span.bytes;
  const std::lock_guard lock(mutex_);
  ++counters_.prefetches;
  counters_.bytes_in += span.bytes;
  return {};
}

// Forget what has arrived, and wait for the oldest until `bytes` more are allowed.
Status ManagedMover::keep_bound(Bytes bytes) {
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

driver::Stream ManagedMover::next_stream() {
  if (streams_.empty()) return driver::kDefaultStream;
  return streams_[turn_++ % streams_.size()];
}

}  // namespace penstock::engine
