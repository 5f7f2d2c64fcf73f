// SPDX-License-Identifier: Apache-2.0
// The engine behind the proxy over a libcuda.so.1 of which each call fails, once or from there on
// for good, in a process of its own each time.  What work finds in memory is right, whatever the
// program was refused, and nothing crashes or hangs.  PENSTOCK_EVERY_CALL: no call is left out.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "doctest/doctest.h"
#include "emulated_cuda.hpp"
#include "emulated_entry.hpp"
#include "emulated_faults.hpp"
#include "fault_tally.hpp"
#include "penstock/interpose.h"

namespace penstock::testing {
namespace {

constexpr std::uint64_t kBytes = 3 << 20;
constexpr std::uint64_t kWords = kBytes / 8;
constexpr std::uint64_t kStride = 64;  // of the words that kernels look at
constexpr unsigned kMostSeconds = 120;
driver::cuda::EmulatedCuda* dials;

struct Block {
  std::uint64_t address = 0;
  std::uint64_t value = 0;  // of its words
};

struct Program {
  penstock_interposer* engine = nullptr;
  void* context = nullptr;
  driver::Stream stream{};
  std::vector<Block> blocks;
  std::atomic<int> wrong{0};

  // A kernel that finds the value in its words, or has written none yet, and adds 1.
  void work(Block& block, bool first) {
    penstock_touch touch{block.address, 0, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE, 0};
    penstock_work work = kernel_work(context, touch);
    work.stream = static_cast<std::uint64_t>(stream);
    if (engine->begin(&work) != 0) return;
    auto* const words = reinterpret_cast<std::uint64_t*>(block.address);
    const std::uint64_t value = block.value++;
    MUST(dials->gpu()
             ->launch(stream,
                      [=, this] {
                        for (std::uint64_t i = 0; i < kWords; i += kStride) {
                          if (!first) wrong += words[i] != value;
                          words[i] = value + 1;
                        }
                      })
             .ok());
    engine->end(&work, 0);
  }
};

// Its end is the process's: 0, or 3 if it has found other data.
[[noreturn]] void be_the_program(std::int64_t fail_at, bool for_good,
                                 std::atomic<std::int64_t>& calls) {
  static Program program;
  alarm(kMostSeconds);
  program.context = primary_context();
  program.stream = dials->gpu()->create_stream().value();
  const penstock_real_driver real = real_driver(dials);
  penstock_interpose_options options{};
  options.struct_size = sizeof(options);
  options.gpu_memory = 16 << 20;
  dials->calls = 0;
  dials->for_good = for_good;
  dials->fail_at = fail_at;
  const penstock_status opened = penstock_interpose(&real, &options, &program.engine);
  penstock_interposer* const engine = program.engine;
  if (opened == PENSTOCK_OK && engine != nullptr) {
    for (int i = 0; i < 7; ++i) {
      Block block;
      if (engine->allocate(kBytes, program.context, 0, 0, &block.address) == 0) {
        program.blocks.push_back(block);
      }
    }
    std::uint64_t pin = 0;
    for (int round = 0; round < 4; ++round) {
      for (Block& block : program.blocks) program.work(block, block.value == 0);
      if (round == 1 && !program.blocks.empty()) {
        engine->pin(program.blocks[0].address, PENSTOCK_PIN_GRAPH, &pin);
      }
    }
    if (pin != 0) engine->unpin(pin);
    std::uint64_t free = 0;
    std::uint64_t total = 0;
    engine->memory_info(program.context, &free, &total);
    MUST(dials->gpu()->synchronize(program.stream).ok());
    if (!program.blocks.empty()) {
      engine->release(program.blocks.back().address, program.context, 0, 0);
    }
    char words[512] = "";
    const bool paged = engine->summary(words, sizeof(words)) != 0;
    if (dials->calls < fail_at) {  // none has failed
      MUST(paged);
      MUST(std::strstr(words, " us in the median, ") != nullptr);
      MUST(std::strstr(words, "waits for pages aside") != nullptr);
    }
    engine->context_gone(program.context);
  }
  dials->fail_at = 0;
  calls = dials->calls.load();
  MUST(dials->gpu()->synchronize(program.stream).ok());
  std::_Exit(program.wrong == 0 ? 0 : 3);
}

// Each in a fork of this process, which has no threads.
void fail_each_call(bool for_good) {
  const bool every = std::getenv("PENSTOCK_EVERY_CALL") != nullptr;
  auto* const calls = static_cast<std::atomic<std::int64_t>*>(
      mmap(nullptr, sizeof(std::atomic<std::int64_t>), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::int64_t runs = 0;
  for (std::int64_t nth = 1;; nth += every ? 1 : 1 + nth / 8) {
    CAPTURE(nth);
    *calls = 0;
    const pid_t child = fork();
    if (child == 0) be_the_program(nth, for_good, *calls);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    if (*calls < nth) break;
    ++runs;
  }
  CHECK(runs > 10);
  tell_faults(for_good ? "calls, for good" : "calls, once", runs);
}

}  // namespace

TEST_CASE("emulated faults: what a thread asks again while it waits is no other call") {
  driver::cuda::EmulatedCuda own;
  const int query = 0;
  const int act = 0;
  const auto asked = [&](std::uint64_t event) {
    return driver::cuda::fails(own, true, {&query, event});
  };
  const auto done = [&] { return driver::cuda::fails(own, false, {&act, 0}); };
  own.fail_at = 4;
  CHECK(!done());
  for (int i = 0; i < 3; ++i) {
    CHECK(!asked(1));
    CHECK(!asked(2));
  }
  CHECK(own.calls == 3);
  CHECK(done());
  CHECK(!asked(1));
  CHECK(own.calls == 5);
  own.for_good = true;
  CHECK(asked(1));
  CHECK(own.calls == 5);
}

TEST_CASE("CUDA child: has failures" * doctest::skip()) {
  void* const library = load_emulated();
  dials = reinterpret_cast<driver::cuda::EmulatedCuda* (*)()>(
      dlsym(library, "penstock_emulated_cuda"))();
  fail_each_call(false);
  fail_each_call(true);
}

TEST_CASE("CUDA: the engine behind the proxy over a driver of which each call fails") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: has failures").code == 0);
}

}  // namespace penstock::testing
