// SPDX-License-Identifier: Apache-2.0
#include "driver/emulated/stream.hpp"

#include <unistd.h>

#include <algorithm>
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

Status HostStream::enqueue(HostWork work) {
  const std::lock_guard lock(mutex_);
  if (capture_ != nullptr) return capture_->add(std::move(work));
  queue_.push_back(std::move(work));
  ++enqueued_;
  arrived_.notify_one();
  return {};
}

HostCapturePtr HostStream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void HostStream::set_capture(HostCapturePtr capture) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
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

namespace {

bool is_default(Stream stream) { return static_cast<std::uint64_t>(stream) < 2; }

Status conflicts(const char* call, const HostCapturePtr& capture) {
  capture->invalidate();
  return {Code::kInvalidArgument, text(call, ": a stream is capturing")};
}

}  // namespace

HostStreams::HostStreams(std::uint64_t seed, std::uint32_t max_delay_us, bool reuse_handles)
    : seed_(seed), max_delay_us_(max_delay_us), owner_(getpid()), reuse_handles_(reuse_handles) {}

HostStreams::~HostStreams() {
  // In a forked child there is no thread to join, and a lock may be held for ever: let it be.
  if (getpid() != owner_) static_cast<void>(streams_.release());
}

HostStreams::StreamPtr HostStreams::make(std::uint64_t salt) const {
  // An odd multiplier spreads neighbouring seeds, so that streams do not delay in step.
  return std::make_shared<HostStream>(seed_ + salt * 0x9E3779B97F4A7C15u, max_delay_us_);
}

Result<HostStreams::StreamPtr> HostStreams::find(Stream stream) {
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
  return Status(Code::kInvalidArgument, text("no stream ", id));
}

Result<Stream> HostStreams::create() {
  const std::lock_guard lock(mutex_);
  const bool again = reuse_handles_ && !destroyed_.empty();
  const std::uint64_t id = again ? destroyed_.back() : next_;
  try {
    streams_->by_handle.emplace(id, make(id));
  } catch (const std::system_error& error) {
    return Status(Code::kDriver, text("create_stream: no thread beyond the ",
                                      streams_->by_handle.size(), " there are: ", error.what()));
  }
  if (again) {
    destroyed_.pop_back();
  } else {
    ++next_;
  }
  return Stream{id};
}

Status HostStreams::destroy(Stream stream) {
  if (stream == kPerThreadStream) return {Code::kInvalidArgument, "destroy_stream: a default one"};
  PENSTOCK_ASSIGN(StreamPtr found, find(stream));
  if (found->is_this_thread()) {
    return {Code::kInvalidArgument, "destroy_stream: called by the stream's own work"};
  }
  if (const HostCapturePtr capture = found->capture()) capture->invalidate();
  {
    const std::lock_guard lock(mutex_);
    streams_->by_handle.erase(static_cast<std::uint64_t>(stream));
    if (reuse_handles_) destroyed_.push_back(static_cast<std::uint64_t>(stream));
  }
  found->synchronize();
  return {};  // the last owner joins the thread, outside the lock
}

Status HostStreams::enqueue(Stream stream, HostWork work) {
  if (is_default(stream)) {
    work();
    return {};
  }
  PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
  return found->enqueue(std::move(work));
}

Result<HostCapturePtr> HostStreams::capture(Stream stream) {
  if (is_default(stream)) return HostCapturePtr();
  PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
  return found->capture();
}

Result<HostRecordingPtr> HostStreams::record(Stream stream) {
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
Status HostStreams::wait(Stream stream, const HostRecordingPtr& recording) {
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

Status HostStreams::begin_capture(Stream stream) {
  if (is_default(stream)) return {Code::kUnsupported, "begin_capture: the default stream"};
  PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
  if (found->capture() != nullptr) {
    return {Code::kInvalidArgument, "begin_capture: the stream is capturing already"};
  }
  found->set_capture(std::make_shared<HostCapture>());
  return {};
}

Result<HostGraph> HostStreams::end_capture(Stream stream) {
  PENSTOCK_ASSIGN(const HostCapturePtr ended, capture(stream));
  if (ended == nullptr) {
    return Status(Code::kInvalidArgument, "end_capture: the stream is not capturing");
  }
  for (const StreamPtr& each : all()) {
    if (each->capture() == ended) each->set_capture(nullptr);
  }
  return ended->end();
}

void HostStreams::break_captures() {
  for (const StreamPtr& each : all()) {
    if (const HostCapturePtr capture = each->capture()) capture->invalidate();
  }
}

std::int64_t HostStreams::captures() const {
  const std::vector<StreamPtr> streams = all();
  return std::ranges::count_if(streams,
                               [](const auto& each) { return each->capture() != nullptr; });
}

Status HostStreams::synchronize(Stream stream) {
  if (is_default(stream)) return {};
  PENSTOCK_ASSIGN(const StreamPtr found, find(stream));
  if (found->is_this_thread()) {
    return {Code::kInvalidArgument, "synchronize: called by the stream's own work"};
  }
  if (const HostCapturePtr capture = found->capture()) return conflicts("synchronize", capture);
  found->synchronize();
  return {};
}

Status HostStreams::synchronize_all() {
  const std::vector<StreamPtr> streams = all();
  for (const StreamPtr& stream : streams) {
    if (stream->is_this_thread()) {
      return {Code::kInvalidArgument, "synchronize_device: called by a stream's own work"};
    }
    if (const HostCapturePtr capture = stream->capture()) {
      break_captures();
      return conflicts("synchronize_device", capture);
    }
  }
  for (const StreamPtr& stream : streams) stream->synchronize();
  return {};
}

std::vector<HostStreams::StreamPtr> HostStreams::all() const {
  std::vector<StreamPtr> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, stream] : streams_->by_handle) all.push_back(stream);
  for (const auto& [id, stream] : streams_->by_thread) all.push_back(stream);
  return all;
}

std::int64_t HostStreams::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(streams_->by_handle.size());
}

}  // namespace penstock::driver
