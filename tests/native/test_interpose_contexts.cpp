// SPDX-License-Identifier: Apache-2.0
// The engine behind the proxy where a program has other contexts beside a device's primary one, as
// green contexts are, or none at all: a process of its own, over the emulated libcuda.so.1.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "doctest/doctest.h"
#include "emulated_entry.hpp"
#include "penstock/interpose.h"
#include "penstock/torch.h"

namespace penstock::testing {
namespace {

[[noreturn]] void have_other_contexts() {
  constexpr std::uint64_t kBytes = 3 << 20;
  constexpr std::size_t kBlocks = 7;  // of which five fit
  const auto word = [](std::uint64_t at) { return reinterpret_cast<std::uint64_t*>(at); };
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  MUST(library != nullptr);
  emulated = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  void* const primary = primary_context();
  const penstock_real_driver real = real_driver(library);
  penstock_interpose_options options{};
  options.struct_size = sizeof(options);
  options.gpu_memory = 16 << 20;
  penstock_interposer* engine = nullptr;
  MUST(penstock_interpose(&real, &options, &engine) == PENSTOCK_OK);

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
  // The device's memory is the same for all of them.
  MUST(engine->make_room(&other, 1 << 20) == 1);
  std::_Exit(0);
}

TEST_CASE("CUDA child: has other contexts" * doctest::skip()) {
  std::signal(SIGSEGV, [](int) { _exit(98); });
  have_other_contexts();
}

TEST_CASE("CUDA: what is touched in another context than the primary one stays") {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || dlsym(library, "penstock_emulated_cuda") == nullptr ||
      dlsym(library, PENSTOCK_PROXY_COUNTERS) != nullptr) {
    MESSAGE("the driver is not the emulated one alone: nothing tested");
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "native_tests", "--test-case=CUDA child: has other contexts",
          "--no-skip", static_cast<char*>(nullptr));
    _exit(99);
  }
  int status = -1;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace penstock::testing
