// SPDX-License-Identifier: Apache-2.0
// What the engine behind the proxy records when it is told to: a process of its own for each
// program, over the emulated libcuda.so.1.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "doctest/doctest.h"
#include "emulated_entry.hpp"
#include "engine/recording/work_trace.hpp"
#include "penstock/interpose.h"

namespace penstock::testing {
namespace {

using engine::WorkOp;
using engine::WorkRecord;
using engine::WorkTraceHeader;

// The program: memory, a kernel given twice, one of them within a capture, memory freed.
[[noreturn]] void be_recorded(const char* path) {
  const auto [context, engine] = interpose(256 << 20, path, PENSTOCK_LOG_INFO);
  MUST(engine->active.load() == (path != nullptr ? 1u : 0u));

  std::uint64_t address = 0;
  MUST(engine->allocate(3 << 20, context, 0, 0, &address) == 0);
  MUST(engine->window_begin.load() <= address && address < engine->window_end.load());
  penstock_touch touch{address + 64, 0, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE, 0};
  penstock_work work = kernel_work(context, touch);
  MUST(engine->begin(&work) == 0);
  engine->end(&work, 0);
  work.captured = 1;
  MUST(engine->begin(&work) == 0);
  engine->end(&work, 0);
  work.captured = 0;
  work.kind = PENSTOCK_WORK_COPY;
  work.function = 0;
  touch = {address + 4096, 100, PENSTOCK_ACCESS_READ, 0};
  MUST(engine->begin(&work) == 0);
  engine->end(&work, 0);
  std::uint64_t token = 0;
  CHECK(engine->pin(address, PENSTOCK_PIN_GRAPH, &token) == 0);
  CHECK(token != 0);
  engine->unpin(token);
  MUST(engine->release(address, context, 0, 0) == 0);
  if (path == nullptr) {
    // A context that is reset takes its memory along, and the next one begins anew.
    MUST(engine->allocate(3 << 20, context, 0, 0, &address) == 0);
    std::uint64_t later = 0;
    engine->context_gone(context);
    const std::uint64_t begin = engine->window_begin;
    const std::uint64_t end = engine->window_end;
    MUST(engine->release(address, context, 0, 0) == PENSTOCK_PASS);
    MUST(engine->allocate(3 << 20, context, 0, 0, &later) == 0);
    MUST(engine->window_begin <= begin && engine->window_end >= end);
    MUST(engine->release(later, context, 0, 0) == 0);
  }
  char words[512];
  MUST(engine->summary(words, sizeof(words)) == 0);  // nothing was paged
  std::exit(0);                                      // not _exit(): the recording is ended then
}

// The process id of a program that has ended well; 0: it ended with `code`.
pid_t run_program(const std::string& path, int* code) {
  setenv("PENSTOCK_TEST_RECORD", path.c_str(), 1);
  const Child child = run_case("CUDA child: is recorded");
  unsetenv("PENSTOCK_TEST_RECORD");
  *code = child.code;
  return child.process;
}

TEST_CASE("CUDA child: is recorded" * doctest::skip()) {
  const char* const path = std::getenv("PENSTOCK_TEST_RECORD");
  if (path != nullptr) be_recorded(*path != '\0' ? path : nullptr);
}

std::vector<WorkRecord> read(const std::string& path, pid_t process) {
  std::ifstream file(path, std::ios::binary);
  WorkTraceHeader header;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  REQUIRE(file.gcount() == sizeof(header));
  CHECK(header.magic == WorkTraceHeader::kMagic);
  CHECK(header.process == static_cast<std::uint32_t>(process));
  CHECK(header.budget == 256 << 20);
  CHECK(header.device_bytes == 2 * kGiB);
  std::vector<WorkRecord> records;
  WorkRecord record;
  while (file.read(reinterpret_cast<char*>(&record), sizeof(record))) records.push_back(record);
  return records;
}

TEST_CASE("CUDA: a program behind the proxy is recorded from its beginning to its end") {
  if (!is_emulated_alone()) return;
  const auto folder =
      std::filesystem::temp_directory_path() / ("penstock-recording-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "a.trace";
  int code = -1;
  const pid_t first = run_program(path, &code);
  CHECK(code == 0);
  const std::vector<WorkRecord> records = read(path, first);
  const std::vector<WorkOp> expected = {WorkOp::kAllocate, WorkOp::kWork,  WorkOp::kTouch,
                                        WorkOp::kWork,     WorkOp::kTouch, WorkOp::kPin,
                                        WorkOp::kUnpin,    WorkOp::kFree};
  REQUIRE(records.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(records[i].op == expected[i]);
  CHECK(records[0].value == 3 << 20);
  CHECK(records[2].at == 0);  // a kernel may reach all of the block
  CHECK(records[2].value == 3 << 20);
  CHECK(records[2].flags == engine::kTouchWritten);
  CHECK(records[3].kind == engine::WorkKind::kCopy);
  CHECK(records[4].at == 4096);
  CHECK(records[4].value == 100);
  CHECK(records[4].flags == 0);

  // A second process leaves that file alone, and has one of its own.
  const pid_t second = run_program(path, &code);
  CHECK(code == 0);
  CHECK(read(path, first).size() == expected.size());
  CHECK(read(path + "." + std::to_string(second) + ".gpu0", second).size() == expected.size());

  // Where nothing can be written the program runs all the same; without a file, nothing is
  // recorded.
  run_program(folder / "no/such/folder", &code);
  CHECK(code == 0);
  run_program("", &code);
  CHECK(code == 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace penstock::testing
