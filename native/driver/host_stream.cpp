// SPDX-License-Identifier: Apache-2.0
#include "driver/host_stream.hpp"

#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "driver/text.hpp"

namespace penstock::driver {

HostStream::HostStream(std::uint64_t seed, std::uint32_t max_delay_us)
    : max_delay_us_(max_delay_us), random_(seed), thread_([this] { run(); }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    arrived_.notify_one();
  }
  thread_.join();
}

void HostStream::enqueue(HostWork work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++enqueued_;
  arrived_.notify_one();
}

void HostStream::synchronize() {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = enqueued_;
  finished_.wait(lock, [&] { return completed_ >= target; });
}

void HostStream::delay() {
  if (max_delay_us_ == 0) return;
  std::uniform_int_distribution<std::uint32_t> distribution(0, max_delay_us_);
  std::this_thread::sleep_for(std::chrono::microseconds(distribution(random_)));
}

void HostStream::run() {
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

HostStreams::HostStreams(std::uint64_t seed, std::uint32_t max_delay_us)
    : seed_(seed), max_delay_us_(max_delay_us), owner_(getpid()) {}

HostStreams::~HostStreams() {
  // In a forked child there is no thread to join, and a lock may be held for ever: let it be.
  if (getpid() != owner_) static_cast<void>(streams_.release());
}

Result<std::shared_ptr<HostStream>> HostStreams::find(Stream stream) const {
  const auto id = static_cast<std::uint64_t>(stream);
  const std::lock_guard lock(mutex_);
  const auto found = streams_->find(id);
  if (found != streams_->end()) return found->second;
  return Status(Code::kInvalidArgument, text("no stream ", id));
}

Result<Stream> HostStreams::create() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_;
  try {
    // An odd multiplier spreads neighbouring seeds, so that streams do not delay in step.
    const std::uint64_t seed = seed_ + id * 0x9E3779B97F4A7C15u;
    streams_->emplace(id, std::make_shared<HostStream>(seed, max_delay_us_));
  } catch (const std::system_error& error) {
    return Status(Code::kDriver, text("create_stream: no thread beyond the ", streams_->size(),
                                      " there are: ", error.what()));
  }
  ++next_;
  return Stream{id};
}

Status HostStreams::destroy(Stream stream) {
  PENSTOCK_ASSIGN(std::shared_ptr<HostStream> found, find(stream));
  if (found->is_this_thread()) {
    return {Code::kInvalidArgument, "destroy_stream: called by the stream's own work"};
  }
  {
    const std::lock_guard lock(mutex_);
    streams_->erase(static_cast<std::uint64_t>(stream));
  }
  found->synchronize();
  return {};  // the last owner joins the thread, outside the lock
}

Status HostStreams::enqueue(Stream stream, HostWork work) {
  if (stream == kDefaultStream) {
    work();
    return {};
  }
  PENSTOCK_ASSIGN(const std::shared_ptr<HostStream> found, find(stream));
  found->enqueue(std::move(work));
  return {};
}

Status HostStreams::synchronize(Stream stream) {
  if (stream == kDefaultStream) return {};
  PENSTOCK_ASSIGN(const std::shared_ptr<HostStream> found, find(stream));
  if (found->is_this_thread()) {
    return {Code::kInvalidArgument, "synchronize: called by the stream's own work"};
  }
  found->synchronize();
  return {};
}

Status HostStreams::synchronize_all() {
  std::vector<std::shared_ptr<HostStream>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, stream] : *streams_) all.push_back(stream);
  }
  for (const auto& stream : all) {
    if (stream->is_this_thread()) {
      return {Code::kInvalidArgument, "synchronize_device: called by a stream's own work"};
    }
    stream->synchronize();
  }
  return {};
}

std::int64_t HostStreams::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(streams_->size());
}

}  // namespace penstock::driver
