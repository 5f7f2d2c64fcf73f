// SPDX-License-Identifier: Apache-2.0
// A recording without host memory at any one of its allocations, and on a disk that fails at any
// one of its calls.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/recording/work_recorder.hpp"
#include "engine/recording/work_trace.hpp"
#include "host_memory/failing.hpp"

namespace {

// Of the calls of the system that a recorder makes the one that fails, or it and all after it.
std::int64_t system_calls = 0;
std::int64_t failing_call = 0;
bool fails_for_good = false;

bool fails() {
  if (failing_call == 0) return false;
  const std::int64_t now = ++system_calls;
  if (fails_for_good ? now < failing_call : now != failing_call) return false;
  errno = ENOSPC;
  return true;
}

}  // namespace

extern "C" {
ssize_t write(int file, const void* data, std::size_t bytes) {
  return fails() ? -1 : syscall(SYS_write, file, data, bytes);
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(more, int) : 0);
  va_end(more);
  return fails() ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
}

namespace penstock::testing {
namespace {

TEST_CASE("host memory: a recording on a disk that fails") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("penstock-disk-" + std::to_string(getpid()));
  for (const bool for_good : {false, true}) {
    std::int64_t runs = 0;
    do {
      std::filesystem::remove(path);
      engine::WorkRecorderOptions options;
      options.path = path;
      system_calls = 0;
      fails_for_good = for_good;
      failing_call = ++runs;
      auto recorder = engine::WorkRecorder::open(options);
      const engine::RecordedTouch touch{1, 0, 7, true};
      if (recorder.ok()) {
        for (std::uint64_t i = 1; i < 4; ++i) {
          recorder.value()->work({.stream = i, .function = i}, {&touch, 1});
        }
        recorder.value()->close();
      }
      failing_call = 0;
      // Whole up to where it ends: a header, and records.
      if (std::filesystem::exists(path)) {
        const auto bytes = std::filesystem::file_size(path);
        CHECK((bytes == 0 ||
               (bytes - sizeof(engine::WorkTraceHeader)) % sizeof(engine::WorkRecord) == 0));
      }
    } while (system_calls >= runs);
    CHECK(runs > 2);
    tell_faults(for_good ? "system calls, for good" : "system calls, once", runs - 1);
  }
  std::filesystem::remove(path);
}

TEST_CASE("host memory: a recording") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("penstock-memory-" + std::to_string(getpid()));
  fail_each_allocation(
      [&] {
        int refused = 0;
        engine::WorkRecorderOptions options;
        {
          const Shelter shelter;
          std::filesystem::remove(path);
          options.path = path;
        }
        std::unique_ptr<engine::WorkRecorder> recorder;
        const auto tried = [&](auto&& call) { refused += scenarios::worked(call) ? 0 : 1; };
        tried([&]() -> Status {
          PENSTOCK_ASSIGN(recorder, engine::WorkRecorder::open(options));
          return {};
        });
        const engine::RecordedTouch touch{1, 0, 7, true};
        for (std::uint64_t i = 1; recorder && i < 4; ++i) {
          tried([&]() -> Status {
            recorder->work({.stream = i, .function = i}, {&touch, 1});
            return {};
          });
        }
        if (recorder) recorder->close();
        return refused;
      },
      1);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace penstock::testing
