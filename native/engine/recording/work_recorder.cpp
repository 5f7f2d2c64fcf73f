// SPDX-License-Identifier: Apache-2.0
#include "engine/recording/work_recorder.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

namespace penstock::engine {
namespace {

// A buffer is written when it holds so many records (1.5 MiB), or after so long.
constexpr std::size_t kFull = 1 << 16;
constexpr std::chrono::milliseconds kPatience{100};
constexpr std::size_t kMostKnown = 1 << 16;

std::int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::uint64_t unix_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return static_cast<std::uint64_t>(ns);
}

// Never over what somebody recorded before; for nobody else to read, as it tells what was computed.
int create_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  struct stat found {};
  if (file >= 0 || errno != EEXIST) return file;
  if (::stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)) {
    errno = EEXIST;
    return -1;
  }
  // A pipe or a device.  Nobody may be reading a pipe: the program is not to wait for that.
  const int stream = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (stream >= 0) (void)fcntl(stream, F_SETFL, fcntl(stream, F_GETFL) & ~O_NONBLOCK);
  return stream;
}

}  // namespace

Result<std::unique_ptr<WorkRecorder>> WorkRecorder::open(const WorkRecorderOptions& options) {
  std::unique_ptr<WorkRecorder> recorder(new WorkRecorder);
  PENSTOCK_TRY(recorder->start(options));
  return recorder;
}

Status WorkRecorder::start(const WorkRecorderOptions& options) {
  path_ = options.path;
  failed_ = options.failed;
  file_ = create_file(path_);
  if (file_ < 0 && errno == EEXIST && !options.suffix.empty()) {
    path_ += options.suffix;
    file_ = create_file(path_);
  }
  if (file_ < 0) return invalid(path_, " cannot be written: ", strerror(errno));
  process_ = getpid();
  WorkTraceHeader header;
  header.device = options.device;
  header.process = static_cast<std::uint32_t>(process_);
  header.budget = options.budget;
  header.device_bytes = options.device_bytes;
  header.unix_ns = unix_ns();
  began_ns_ = steady_ns();
  buffer_.reserve(2 * kFull);
  // No signal of the program's ends up in this thread, nor the one for a file that grew too large.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    writer_ = std::thread([this, header] { write_all(header); });
  } catch (const std::system_error& error) {
    status = {Code::kInternal, text("no thread to record with: ", error.what())};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

std::uint64_t WorkRecorder::now() {
  last_ns_ = std::max(last_ns_, static_cast<std::uint64_t>(steady_ns() - began_ns_));
  return last_ns_;
}

// Of more than kMostKnown, whose like come and go, all but the last few are gone: they are new ones
// should they come again.
std::uint32_t WorkRecorder::number_of(Numbers& numbers, std::uint64_t handle) {
  if (numbers.of.size() >= kMostKnown && !numbers.of.contains(handle)) numbers.of.clear();
  const auto [found, added] = numbers.of.try_emplace(handle, numbers.next);
  numbers.next += added ? 1 : 0;
  return found->second;
}

void WorkRecorder::look_at_size() {
  if (buffer_.size() >= kFull) full_.notify_one();
  if (buffer_.size() * sizeof(WorkRecord) > kMostQueued) dropping_ = overrun_ = true;
}

void WorkRecorder::add(WorkOp op, std::uint64_t block, Bytes value) {
  const std::lock_guard lock(mutex_);
  if (dropping_) return;
  buffer_.push_back({op, 0, WorkKind::kKernel, static_cast<std::uint32_t>(block), now(), value});
  look_at_size();
}

void WorkRecorder::work(const RecordedWork& work, std::span<const RecordedTouch> touches) {
  const std::lock_guard lock(mutex_);
  if (dropping_) return;
  const std::uint64_t stream = number_of(streams_, work.stream);
  // Number 0 is for work that is no code of the program's.
  const std::uint64_t function =
      work.function == 0 ? 0 : 1 + std::uint64_t{number_of(functions_, work.function)};
  const std::size_t head = buffer_.size();
  buffer_.push_back({WorkOp::kWork, work.opaque ? kWorkOpaque : std::uint8_t{0}, work.kind, 0,
                     now(), function | stream << 32});
  for (std::size_t i = 0; i < touches.size(); ++i) {
    // Kernels name the same block in several parameters.
    constexpr std::size_t kBack = 8;
    const auto known = touches.subspan(i - std::min(i, kBack), std::min(i, kBack));
    if (std::find(known.begin(), known.end(), touches[i]) != known.end()) continue;
    buffer_.push_back({WorkOp::kTouch, touches[i].written ? kTouchWritten : std::uint8_t{0},
                       WorkKind::kKernel, static_cast<std::uint32_t>(touches[i].block),
                       touches[i].offset, touches[i].bytes});
  }
  buffer_[head].number = static_cast<std::uint32_t>(buffer_.size() - head - 1);
  look_at_size();
}

Status WorkRecorder::write(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file_, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      return Status(Code::kInternal, "the recording ends here: ", path_, ": ",
                    done == 0 ? "nothing is taken" : strerror(errno));
    }
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

// The writing thread.
void WorkRecorder::write_all(const WorkTraceHeader& header) {
  std::vector<WorkRecord> writing;
  writing.reserve(2 * kFull);
  Status status = write(&header, sizeof(header));
  for (bool ending = false; !ending && status.ok();) {
    {
      std::unique_lock lock(mutex_);
      full_.wait_for(lock, kPatience, [this] { return ending_ || buffer_.size() >= kFull; });
      ending = ending_;
      std::swap(writing, buffer_);
      if (overrun_) {
        status = {Code::kInternal, text("the recording ends here: ", path_,
                                        " is too slow for what the program does")};
      }
    }
    if (Status wrote = write(writing.data(), writing.size() * sizeof(WorkRecord)); !wrote.ok()) {
      status = std::move(wrote);
    }
    writing.clear();
  }
  if (status.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    dropping_ = true;
    buffer_ = {};
  }
  if (failed_) failed_(status);
}

void WorkRecorder::close() {
  if (getpid() != process_) {
    // It is no thread of this process: there is nothing to join or to detach.
    if (writer_.joinable()) (void)new std::thread(std::move(writer_));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    dropping_ = ending_ = true;
  }
  full_.notify_one();
  if (writer_.joinable()) writer_.join();
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

}  // namespace penstock::engine
