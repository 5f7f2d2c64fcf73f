// SPDX-License-Identifier: Apache-2.0
// What a program makes and destroys again and again leaves nothing behind: the bytes that malloc
// has given out are the same after a hundred thousand times as after the first ones.
#include <malloc.h>

#include <filesystem>
#include <vector>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "engine/recording/work_recorder.hpp"
#include "lab/machines/modelled_driver.hpp"
#include "process/program.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kPage = 2 * kMiB;
constexpr int kTimes = 100'000;
constexpr int kFirst = 20'000;  // until then vectors and plans may still grow

// Of which malloc knows nothing under a sanitizer: then nothing is checked.
std::size_t given_out() { return mallinfo2().uordblks; }

// A machine whose work takes no time of the host's, and a program that is twice its memory.
struct Machine {
  Machine() {
    device = driver::ModelledDriver::open({.capacity = 64 * kPage}).value();
    auto made = engine::Program::create(
        *device, {.budget = 20 * kPage, .page_bytes = kPage, .start_paging = [] {}, .widened = {}});
    PENSTOCK_REQUIRE_OK(made.status());
    program = std::move(made).value();
    for (int i = 0; i < 40; ++i) blocks.push_back(allocate(kPage));
  }
  Addr allocate(Bytes bytes) {
    const auto got = program->allocator().allocate(bytes, driver::Stream{1000});
    PENSTOCK_REQUIRE_OK(got.status());
    return got.value();
  }
  void work(driver::Stream stream, std::vector<engine::TouchedAddress> touched,
            engine::WorkKind kind = engine::WorkKind::kKernel,
            std::vector<engine::HeldAddress> held = {}) {
    PENSTOCK_REQUIRE_OK(program->announce(stream, touched, false, 7, kind, held));
    program->given(stream);
  }

  std::unique_ptr<driver::ModelledDriver> device;
  std::unique_ptr<engine::Program> program;
  std::vector<Addr> blocks;
};

// `step` so often; what is given out at the end is within `most` bytes of what was after the first.
template <class Step>
void stays_within(std::size_t most, Step step) {
  std::size_t before = 0;
  for (int i = 0; i < kTimes; ++i) {
    step(static_cast<std::uint64_t>(i));
    if (i == kFirst) before = given_out();
  }
  CHECK(given_out() <= before + most);
}

TEST_CASE("growth: streams that a program makes, gives work and destroys") {
  Machine machine;
  std::int64_t events = 0;
  // The machine's own table of events doubles once more meanwhile; a stream that were kept would
  // take some 100 bytes, 8 MB in all.
  stays_within(1536 * kKiB, [&](std::uint64_t i) {
    const driver::Stream stream{2000 + i};
    machine.work(stream, {{machine.blocks[7 * i % 40], 0, true}});
    const Addr own = machine.program->allocator().allocate(kPage, stream).value();
    PENSTOCK_REQUIRE_OK(machine.program->allocator().free(own));
    PENSTOCK_REQUIRE_OK(machine.program->stream_gone(stream));
    PENSTOCK_REQUIRE_OK(machine.device->destroy_stream(stream));
    if (i == kFirst) events = machine.device->live().events;
  });
  CHECK(machine.device->live().events <= events + 4);
}

TEST_CASE("growth: tables of addresses that come and go") {
  Machine machine;
  const driver::Stream stream{1000};
  stays_within(256 * kKiB, [&](std::uint64_t i) {
    const Addr table = machine.allocate(4096);
    machine.work(stream, {{table, 16, true}}, engine::WorkKind::kCopy,
                 {{table, machine.blocks[i % 40]}, {table + 8, machine.blocks[(i + 1) % 40]}});
    PENSTOCK_REQUIRE_OK(machine.program->allocator().free(table));
  });
}

TEST_CASE("growth: a table that is written over in part, each time elsewhere") {
  Machine machine;
  const driver::Stream stream{1000};
  const Addr table = machine.allocate(4096);
  stays_within(256 * kKiB, [&](std::uint64_t i) {
    const Addr at = table + 8 * (i % 400);
    const Bytes words = 1 + (400 - i / 400 % 400) % 100;
    machine.work(stream, {{at, 8 * words, true}}, engine::WorkKind::kCopy,
                 {{at, machine.blocks[i % 8]}});
  });
}

TEST_CASE("growth: kernels that a recording has seen") {
  const std::string path = std::filesystem::temp_directory_path() / "penstock-growth-test";
  std::filesystem::remove(path);
  auto recorder = engine::WorkRecorder::open({.path = path, .suffix = {}, .failed = {}});
  PENSTOCK_REQUIRE_OK(recorder.status());
  stays_within(4 * kMiB, [&](std::uint64_t i) {
    for (std::uint64_t k = 0; k < 5; ++k) {
      recorder.value()->work({.stream = 5 * i + k, .function = 1 + 5 * i + k}, {});
    }
  });
  recorder.value()->close();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace penstock::testing
