// SPDX-License-Identifier: Apache-2.0
// Work that a program gives when it ends: from atexit(), when its thread's own objects have gone.
// A process of its own, over the emulated libcuda.so.1.
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "doctest/doctest.h"
#include "emulated_entry.hpp"
#include "penstock/interpose.h"
#include "penstock/torch.h"

namespace penstock::testing {
namespace {

struct Ending : Interposed {
  std::array<std::uint64_t, 7> blocks{};  // of which five fit
  void* tensor = nullptr;

  void touch_all() {
    for (const std::uint64_t block : blocks) {
      penstock_touch touch{block, 0, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE, 0};
      penstock_work work = kernel_work(context, touch);
      MUST(engine->begin(&work) == 0);
      ++*reinterpret_cast<std::uint64_t*>(block);
      engine->end(&work, 0);
    }
  }
};

[[noreturn]] void give_work_at_the_end() {
  static Ending program;
  static_cast<Interposed&>(program) = interpose(16 << 20);
  std::atexit([] {  // behind the end of all that is made from here on
    penstock_torch_free(program.tensor, 4096, 0, nullptr);
    MUST(penstock_torch_alloc(4096, 0, nullptr) != nullptr);
    _exit(42);
  });
  program.tensor = penstock_torch_alloc(4096, 0, nullptr);
  for (std::uint64_t& block : program.blocks) {
    MUST(program.engine->allocate(3 << 20, program.context, 0, 0, &block) == 0);
    penstock_touch touch{block, 8, PENSTOCK_ACCESS_WRITE, 0};
    penstock_work work = kernel_work(program.context, touch);
    MUST(program.engine->begin(&work) == 0);
    *reinterpret_cast<std::uint64_t*>(block) = 0;
    program.engine->end(&work, 0);
  }
  program.touch_all();
  std::atexit([] {
    program.touch_all();
    program.touch_all();
    penstock_touch touch{program.blocks[0], 8, PENSTOCK_ACCESS_READ, 0};
    penstock_work work = kernel_work(program.context, touch);
    MUST(program.engine->begin(&work) == 0);
    MUST(*reinterpret_cast<std::uint64_t*>(program.blocks[0]) == 3);
  });
  std::exit(0);
}

TEST_CASE("CUDA child: gives work at its end" * doctest::skip()) { give_work_at_the_end(); }

TEST_CASE("CUDA: work is seen from atexit(), when the objects of the thread have gone") {
  if (!is_emulated_alone()) return;
  CHECK(run_case("CUDA child: gives work at its end").code == 42);
}

}  // namespace
}  // namespace penstock::testing
