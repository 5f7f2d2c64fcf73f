// SPDX-License-Identifier: Apache-2.0
// The engine behind the proxy where a program has other contexts beside a device's primary one, as
// green contexts are, or none at all: a process of its own, over the emulated libcuda.so.1.
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
  const auto [primary, engine] = interpose(16 << 20);

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
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: has other contexts").code == 0);
}

}  // namespace
}  // namespace penstock::testing
