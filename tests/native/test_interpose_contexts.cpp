// SPDX-License-Identifier: Apache-2.0
// The engine behind the proxy where a program has other contexts beside a device's primary one, as
// green contexts are, or none at all: a process of its own, over the emulated libcuda.so.1.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "emulated_cuda.hpp"
#include "emulated_entry.hpp"
#include "penstock/interpose.h"
#include "penstock/torch.h"
#include "process/session.hpp"

namespace penstock::testing {
namespace {

[[noreturn]] void have_other_contexts() {
  constexpr std::uint64_t kBytes = 3 << 20;
  constexpr std::size_t kBlocks = 7;  // of which five fit
  const auto word = [](std::uint64_t at) { return reinterpret_cast<std::uint64_t*>(at); };
  const auto [primary, engine] = interpose(16 << 20);
  const auto dials = reinterpret_cast<driver::cuda::EmulatedCuda* (*)()>(
      dlsym(load_emulated(), "penstock_emulated_cuda"))();

  // A framework's allocator asks before any work: the block's context is known all the same.
  std::vector<std::uint64_t> blocks;
  blocks.push_back(reinterpret_cast<std::uint64_t>(penstock_torch_alloc(kBytes, 0, nullptr)));
  penstock_block block{};
  block.struct_size = sizeof(block);
  MUST(engine->block_of(blocks[0], &block) == 0);
  MUST(block.context == primary);

  while (blocks.size() < kBlocks) {
    blocks.push_back(0);
    MUST(engine->allocate(kBytes, primary, 0, 0, &blocks.back()) == 0);
  }
  const auto touch_all = [&] {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      penstock_touch touch{blocks[i], 0, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE, 0};
      penstock_work work = kernel_work(primary, touch);
      MUST(engine->begin(&work) == 0);
      *word(blocks[i]) = i;
      engine->end(&work, 0);
    }
  };
  touch_all();
  // What other contexts touch comes in, and stays while everything else comes and goes.
  int other = 0;
  const std::vector<void*> contexts{&other, nullptr};
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    penstock_touch touch{blocks[i] + 64, 0, PENSTOCK_ACCESS_READ, 0};
    penstock_work work = kernel_work(contexts[i], touch);
    MUST(engine->begin(&work) == 0);
    MUST(*word(blocks[i]) == i);
    engine->end(&work, 0);
    touch_all();
    MUST(*word(blocks[i]) == i);
  }
  // No mark tells when their work is over: who frees what it touches waits for the device.
  driver::HostDriver& gpu = *dials->gpu();
  const driver::Stream elsewhere = std::move(gpu.create_stream()).value();
  for (const bool ordered : {false, true}) {
    penstock_touch touch{blocks[ordered], 0, PENSTOCK_ACCESS_READ, 0};
    penstock_work work = kernel_work(&other, touch);
    work.stream = static_cast<std::uint64_t>(elsewhere);
    std::atomic<bool> over = false;
    MUST(engine->begin(&work) == 0);
    MUST(gpu.launch(elsewhere,
                    [&over] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(100));
                      over = true;
                    })
             .ok());
    engine->end(&work, 0);
    MUST(engine->release(blocks[ordered], ordered ? &other : primary, work.stream, ordered) == 0);
    MUST(over);
  }
  // The device's memory is the same for all of them.
  MUST(engine->make_room(&other, 1 << 20) == 1);
  // What was freed, and stays for a graph's sake, cannot be freed again.
  constexpr std::int32_t kInvalidValue = 1;
  std::uint64_t token = 0;
  MUST(engine->pin(blocks.back(), PENSTOCK_PIN_GRAPH, &token) == 0 && token != 0);
  MUST(engine->release(blocks.back(), primary, 0, 0) == 0);
  MUST(engine->release(blocks.back(), primary, 0, 0) == kInvalidValue);
  engine->unpin(token);
  std::_Exit(0);
}

TEST_CASE("CUDA child: has other contexts" * doctest::skip()) {
  std::signal(SIGSEGV, [](int) { _exit(98); });
  have_other_contexts();
}

TEST_CASE("CUDA: what is touched in another context than the primary one stays") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: has other contexts").code == 0);
}

// Memory that is mapped is no context's, so that the driver does not take it back with one.
[[noreturn]] void reset_its_context() {
  const auto [context, engine] = interpose(16 << 20);
  const auto dials = reinterpret_cast<driver::cuda::EmulatedCuda* (*)()>(
      dlsym(load_emulated(), "penstock_emulated_cuda"))();
  const auto free = [&] { return dials->gpu()->memory_info().value().free; };
  const Bytes before = free();
  for (const int blocks : {2, 7}) {  // of which five fit
    std::uint64_t address = 0;
    for (int i = 0; i < blocks; ++i) {
      MUST(engine->allocate(3 << 20, context, 0, 0, &address) == 0);
      penstock_touch touch{address, 0, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE, 0};
      penstock_work work = kernel_work(context, touch);
      MUST(engine->begin(&work) == 0);
      MUST(dials->gpu()
               ->launch(driver::Stream{},
                        [address] {
                          std::this_thread::sleep_for(std::chrono::milliseconds(2));
                          *reinterpret_cast<std::uint64_t*>(address) = 1;
                        })
               .ok());
      engine->end(&work, 0);
    }
    MUST(free() < before);
    engine->context_gone(context);
    MUST(free() == before);
  }
  std::_Exit(0);
}

TEST_CASE("CUDA child: resets its context" * doctest::skip()) { reset_its_context(); }

TEST_CASE("CUDA: a program's memory goes back with its context") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: resets its context").code == 0);
}

// The program is told once, and goes on without paging.
TEST_CASE("CUDA child: has too little" * doctest::skip()) {
  std::FILE* const words = std::tmpfile();
  MUST(words != nullptr && dup2(fileno(words), STDERR_FILENO) == STDERR_FILENO);
  const auto [context, engine] = interpose(1 << 20);
  const auto dials = reinterpret_cast<driver::cuda::EmulatedCuda* (*)()>(
      dlsym(load_emulated(), "penstock_emulated_cuda"))();
  std::uint64_t address = 0;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t calls = dials->calls;
    MUST(engine->allocate(3 << 20, context, 0, 0, &address) == PENSTOCK_PASS);
    if (i > 0) MUST(dials->calls - calls < 8);  // the device is not opened again
  }
  std::rewind(words);
  char line[256] = "";
  MUST(std::fgets(line, sizeof(line), words) != nullptr);
  MUST(std::strstr(line, "a budget of 1 MiB holds no page of 2 MiB") != nullptr);
  MUST(std::fgets(line, sizeof(line), words) == nullptr);
  std::_Exit(0);
}

TEST_CASE("CUDA: a budget that holds no page is said, once") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: has too little").code == 0);
}

// A pool of a device's own, as a graph's is, may lie beyond another device's memory.
[[noreturn]] void have_two_devices() {
  void* const library = load_emulated();
  primary_context();
  const auto dials =
      reinterpret_cast<driver::cuda::EmulatedCuda* (*)()>(dlsym(library, "penstock_emulated_cuda"));
  MUST(dials != nullptr);
  dials()->devices = 2;
  static engine::Session session;
  engine::SessionOptions options;
  options.gpu_memory = 64 << 20;
  options.start_paging = [] {};
  options.widened = [](Addr, Addr) {};
  session.configure(options);
  engine::Device* devices[2] = {};
  std::vector<Addr> blocks[2];
  const auto make = [&](std::size_t device) {
    const auto made = devices[device]->program->allocator().allocate(3 << 20, {});
    MUST(made.ok());
    blocks[device].push_back(made.value());
  };
  for (std::size_t i = 0; i < 2; ++i) {
    const auto device = session.device(static_cast<int>(i));
    MUST(device.ok());
    devices[i] = device.value();
    make(i);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    MUST(devices[i]->program->allocator().begin_pool({0, 1}, {}).ok());
    make(i);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    for (const Addr block : blocks[i]) MUST(session.holding(block + 64) == devices[i]);
  }
  MUST(session.holding(1) == nullptr);
  MUST(session.holding(blocks[0][0] - 64) == nullptr);  // beside it
  std::_Exit(0);
}

TEST_CASE("CUDA child: has two devices" * doctest::skip()) { have_two_devices(); }

TEST_CASE(
    "CUDA: an address is that of the device whose block is there, though others' lie around it") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: has two devices").code == 0);
}

}  // namespace
}  // namespace penstock::testing
