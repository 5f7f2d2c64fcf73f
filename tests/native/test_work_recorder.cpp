// SPDX-License-Identifier: Apache-2.0
// The recording of a program: what is in the file, from several threads, and what happens to a
// program whose disk is full.  Nothing does.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "engine/recording/work_recorder.hpp"
#include "process/program.hpp"

namespace penstock::testing {
namespace {

using engine::RecordedTouch;
using engine::WorkKind;
using engine::WorkOp;
using engine::WorkRecord;
using engine::WorkRecorder;
using engine::WorkTraceHeader;

// A folder that goes with everything in it.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "penstock-test-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Recording {
  WorkTraceHeader header;
  std::vector<WorkRecord> records;
};

Recording read(const std::string& path) {
  Recording found;
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&found.header), sizeof(found.header));
  REQUIRE(file.gcount() == sizeof(found.header));
  REQUIRE(found.header.magic == WorkTraceHeader::kMagic);
  WorkRecord record;
  while (file.read(reinterpret_cast<char*>(&record), sizeof(record))) {
    found.records.push_back(record);
  }
  CHECK(file.gcount() == 0);
  return found;
}

std::unique_ptr<WorkRecorder> record(const engine::WorkRecorderOptions& options) {
  auto recorder = WorkRecorder::open(options);
  INFO(recorder.status().message());
  REQUIRE(recorder.ok());
  return std::move(recorder).value();
}

TEST_CASE("work recorder: a program's allocations, work and pins, in their order") {
  constexpr Bytes kGranule = 64 * kKiB;
  const Folder folder;
  auto device = driver::open_host_driver({.capacity = 64 * kMiB, .granularity = kGranule}).value();
  const auto recorder = record({.path = folder.file("a.trace"),
                                .suffix = {},
                                .device = 3,
                                .budget = 20 * kGranule,
                                .device_bytes = kGiB,
                                .failed = {}});
  auto made = engine::Program::create(*device, {.budget = 20 * kGranule,
                                                .page_bytes = kGranule,
                                                .start_paging = [] {},
                                                .widened = {},
                                                .recorder = recorder.get()});
  REQUIRE(made.ok());
  auto program = std::move(made).value();
  const driver::Stream stream = device->create_stream().value();
  const Addr a = program->allocator().allocate(5000, stream).value();
  const Addr b = program->allocator().allocate(3 * kGranule, stream).value();
  const auto announce = [&](std::vector<engine::TouchedAddress> touched, std::uint64_t function,
                            bool opaque, WorkKind kind) {
    REQUIRE(program->announce(stream, touched, opaque, function, kind).ok());
    program->given(stream);
  };
  // The same block in two parameters, a number that is no address, a piece of a block.
  announce({{a + 8, 0, true}, {b, 0, true}, {a, 0, true}, {77, 0, true}}, 0xabc, true,
           WorkKind::kKernel);
  announce({{b + 100, 50, false}}, 0, false, WorkKind::kCopy);
  announce({{b, 0, true}}, 0xdef, false, WorkKind::kKernel);
  announce({}, 0xabc, false, WorkKind::kGraph);
  const Result<engine::Pin> pin = program->pin(b + 5);
  REQUIRE(pin.ok());
  program->unpin(pin.value());
  REQUIRE(program->allocator().free(a).ok());
  recorder->close();
  REQUIRE(program->allocator().free(b).ok());  // not recorded any more
  program.reset();
  REQUIRE(device->destroy_stream(stream).ok());

  const Recording found = read(folder.file("a.trace"));
  CHECK(found.header.device == 3);
  CHECK(found.header.budget == 20 * kGranule);
  CHECK(found.header.process == static_cast<std::uint32_t>(getpid()));
  struct Expected {
    WorkOp op;
    std::uint32_t number;
    std::uint64_t value;
    int flags = 0;
    WorkKind kind = WorkKind::kKernel;
    std::uint64_t offset = 0;
  };
  const Bytes held = found.records.at(0).value;
  CHECK(held >= 5000);
  const std::vector<Expected> expected = {
      {WorkOp::kAllocate, 1, held},
      {WorkOp::kAllocate, 2, 3 * kGranule},
      {WorkOp::kWork, 2, 1, 1},
      {WorkOp::kTouch, 1, held, 1},
      {WorkOp::kTouch, 2, 3 * kGranule, 1},
      {WorkOp::kWork, 1, 0, 0, WorkKind::kCopy},
      {WorkOp::kTouch, 2, 50, 0, WorkKind::kKernel, 100},
      {WorkOp::kWork, 1, 2},
      {WorkOp::kTouch, 2, 3 * kGranule, 1},
      {WorkOp::kWork, 0, 1, 0, WorkKind::kGraph},
      {WorkOp::kPin, 2, 0},
      {WorkOp::kUnpin, 2, 0},
      {WorkOp::kFree, 1, 0},
  };
  REQUIRE(found.records.size() == expected.size());
  std::uint64_t time = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    const WorkRecord& got = found.records[i];
    CHECK(got.op == expected[i].op);
    CHECK(got.number == expected[i].number);
    CHECK(got.value == expected[i].value);
    CHECK(got.flags == expected[i].flags);
    CHECK(got.kind == expected[i].kind);
    if (got.op == WorkOp::kTouch) {
      CHECK(got.at == expected[i].offset);
    } else {
      CHECK(got.at >= time);
      time = got.at;
    }
  }
}

TEST_CASE("work recorder: several threads lose nothing, and no piece of work is torn") {
  const Folder folder;
  const auto recorder = record({.path = folder.file("a"), .suffix = {}, .failed = {}});
  constexpr int kThreads = 4;
  constexpr std::uint64_t kEach = 40'000;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&recorder, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const RecordedTouch touches[] = {{t + 1, i, 7, true}, {t + 1, i + 1, 7, false}};
        recorder->work({.stream = 100 + t, .function = 200 + t}, touches);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder->close();
  const Recording found = read(folder.file("a"));
  REQUIRE(found.records.size() == 3 * kThreads * kEach);
  std::map<std::uint64_t, std::uint64_t> next;  // by stream
  std::uint64_t time = 0;
  bool right = true;
  for (std::size_t i = 0; i < found.records.size(); i += 3) {
    const WorkRecord& work = found.records[i];
    const WorkRecord& first = found.records[i + 1];
    const WorkRecord& second = found.records[i + 2];
    right = right && work.op == WorkOp::kWork && work.number == 2 && work.at >= time;
    time = work.at;
    const std::uint64_t expected = next[work.value >> 32]++;
    right = right && first.op == WorkOp::kTouch && first.at == expected && first.flags == 1;
    right = right && second.at == expected + 1 && second.number == first.number;
  }
  CHECK(right);
  CHECK(next.size() == kThreads);
}

TEST_CASE("work recorder: what is there already is left alone") {
  const Folder folder;
  std::ofstream(folder.file("a")) << "mine";
  CHECK(!WorkRecorder::open({.path = folder.file("a"), .suffix = {}, .failed = {}}).ok());
  const auto other = record({.path = folder.file("a"), .suffix = ".7.gpu0", .failed = {}});
  CHECK(other->path() == folder.file("a.7.gpu0"));
  CHECK(std::filesystem::file_size(folder.file("a")) == 4);
  const auto nowhere =
      WorkRecorder::open({.path = folder.file("no/b"), .suffix = {}, .failed = {}});
  CHECK(nowhere.status().message().find("No such file") != std::string::npos);
}

TEST_CASE("work recorder: a recording is for its owner alone, whatever the umask") {
  const Folder folder;
  const mode_t before = umask(0);
  WorkRecorder::open({.path = folder.file("own"), .suffix = {}, .failed = {}}).value()->close();
  umask(before);
  struct stat found {};
  REQUIRE(stat(folder.file("own").c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
}

TEST_CASE("work recorder: a pipe is written to, and not waited for") {
  const Folder folder;
  const std::string path = folder.file("pipe");
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const auto unread = WorkRecorder::open({.path = path, .suffix = {}, .failed = {}});
  CHECK(unread.status().code() == Code::kInvalidArgument);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  auto recorder = WorkRecorder::open({.path = path, .suffix = ".2", .failed = {}}).value();
  recorder->allocated(1, 4096);
  recorder->close();
  std::array<char, 256> content{};
  CHECK(::read(reader, content.data(), content.size()) ==
        sizeof(WorkTraceHeader) + sizeof(WorkRecord));
  ::close(reader);
  CHECK(!std::filesystem::exists(path + ".2"));
}

TEST_CASE("work recorder: a full disk ends the recording, once, and nothing else") {
  const Folder folder;
  const std::string path = folder.file("a");
  int said[2];
  REQUIRE(pipe(said) == 0);
  const pid_t child = fork();
  if (child == 0) {
    // Past this size a write fails, and its thread is sent a signal that would end the process.
    const rlimit limit{4 << 20, 4 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::atomic<int> failures{0};
    auto made =
        WorkRecorder::open({.path = path, .suffix = {}, .failed = [&](const Status& status) {
                              ++failures;
                              const std::string& line = status.message();
                              if (::write(said[1], line.data(), line.size()) < 0) _exit(3);
                            }});
    if (!made.ok()) _exit(2);
    const RecordedTouch touch{1, 0, 7, true};
    for (int i = 0; i < 300'000; ++i) made.value()->work({.function = 5}, {&touch, 1});
    made.value()->close();
    _exit(failures == 1 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  char line[512] = "";
  CHECK(::read(said[0], line, sizeof(line) - 1) > 0);
  CHECK(std::string(line).find("the recording ends here: " + path) == 0);
  CHECK(std::filesystem::file_size(path) <= 4u << 20);
  ::close(said[0]);
  ::close(said[1]);
}

TEST_CASE("work recorder: a child that was forked leaves its parent's file alone") {
  const Folder folder;
  const auto recorder = record({.path = folder.file("a"), .suffix = {}, .failed = {}});
  recorder->allocated(1, 100);
  const pid_t child = fork();
  if (child == 0) {
    recorder->close();
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  recorder->freed(1);
  recorder->close();
  CHECK(read(folder.file("a")).records.size() == 2);
}

TEST_CASE("work recorder: an event costs less than a microsecond") {
  const Folder folder;
  const auto recorder = record({.path = folder.file("a"), .suffix = {}, .failed = {}});
  const RecordedTouch touches[] = {{1, 0, 7, true}, {2, 0, 7, true}, {3, 0, 7, true}};
  constexpr int kCount = 200'000;
  const auto from = std::chrono::steady_clock::now();
  for (int i = 0; i < kCount; ++i) {
    recorder->work({.stream = 9, .function = static_cast<std::uint64_t>(i % 50)}, touches);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - from;
  recorder->close();
  MESSAGE("a piece of work with three touches: " << took.count() / kCount << " ns");
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  // Ten times what it takes alone on a machine: only a change of kind is meant to be caught.
  CHECK(took.count() / kCount < 1000);
#endif
}

}  // namespace
}  // namespace penstock::testing
