// SPDX-License-Identifier: Apache-2.0
// Writes the recording of a program (work_trace.hpp) while it runs: records go into a buffer, and
// a thread of its own writes full buffers to the file.  An event costs what taking a lock, reading
// the clock and storing 24 bytes a record cost, a tenth of a microsecond.
//
// Nothing that happens to the file reaches the program.  When a write fails, or the file is so slow
// that kMostQueued are waiting, the recording ends with what is in the file then, and `failed` is
// called once, by the writing thread; from then on events are dropped.
//
// Thread rule: any thread, several at once; the order of the records is that of the calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "engine/recording/work_trace.hpp"

namespace penstock::engine {

struct WorkRecorderOptions {
  std::string path;    // taken only if there is no such file yet
  std::string suffix;  // else this behind it
  std::int32_t device = 0;
  Bytes budget = 0;
  Bytes device_bytes = 0;
  std::function<void(const Status&)> failed;
};

struct RecordedTouch {
  std::uint64_t block = 0;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool written = true;
  bool operator==(const RecordedTouch&) const = default;
};

struct RecordedWork {
  std::uint64_t stream = 0;  // a handle
  std::uint64_t function = 0;
  WorkKind kind = WorkKind::kKernel;
  bool opaque = false;
};

class WorkRecorder {
 public:
  static constexpr Bytes kMostQueued = 64 * kMiB;

  // kInvalidArgument, with the system's reason, if the file cannot be made.
  static Result<std::unique_ptr<WorkRecorder>> open(const WorkRecorderOptions& options);
  ~WorkRecorder() { close(); }
  WorkRecorder(const WorkRecorder&) = delete;
  WorkRecorder& operator=(const WorkRecorder&) = delete;

  void allocated(std::uint64_t block, Bytes bytes) { add(WorkOp::kAllocate, block, bytes); }
  void freed(std::uint64_t block) { add(WorkOp::kFree, block, 0); }
  void pinned(std::uint64_t block, bool yes) { add(yes ? WorkOp::kPin : WorkOp::kUnpin, block, 0); }
  void work(const RecordedWork& work, std::span<const RecordedTouch> touches);

  // All there is goes to the file; later events are dropped.  In a process that was forked from the
  // one that opened it, nothing: the file is the parent's.
  void close();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  WorkRecorder() = default;
  Status start(const WorkRecorderOptions& options);
  void add(WorkOp op, std::uint64_t block, Bytes value);
  [[nodiscard]] std::uint64_t now();
  struct Numbers {
    std::unordered_map<std::uint64_t, std::uint32_t> of;
    std::uint32_t next = 0;
  };
  static std::uint32_t number_of(Numbers& numbers, std::uint64_t handle);
  void look_at_size();
  void write_all(const WorkTraceHeader& header);
  Status write(const void* data, std::size_t bytes);

  std::string path_;
  std::function<void(const Status&)> failed_;
  int file_ = -1;
  int process_ = 0;  // that opened it
  std::int64_t began_ns_ = 0;

  std::mutex mutex_;
  std::condition_variable full_;
  std::vector<WorkRecord> buffer_;
  Numbers streams_;
  Numbers functions_;
  std::uint64_t last_ns_ = 0;
  bool dropping_ = false;  // no more records
  bool overrun_ = false;   // since too many were waiting
  bool ending_ = false;    // the thread is to write what there is, and end
  std::thread writer_;
};

}  // namespace penstock::engine
