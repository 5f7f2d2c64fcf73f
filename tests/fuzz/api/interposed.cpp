// SPDX-License-Identifier: Apache-2.0
// Sequences of calls to the table behind the proxy, over the emulated libcuda.so.1.  The engine
// lives as long as its process, and so do its blocks.
#include <dlfcn.h>
#include <unistd.h>

#include "draw.hpp"
#include "penstock/interpose.h"

namespace penstock::fuzz {
namespace {

using GetProcAddress = std::int32_t (*)(const char*, void**, std::int32_t, std::uint64_t,
                                        std::int32_t*);
constexpr std::uint64_t kLegacyStream = 1;  // the emulated driver wants it said
GetProcAddress emulated;

std::int32_t get_device(std::int32_t* ordinal) {
  *ordinal = 0;
  return 0;
}

std::int32_t get_proc_address(const char* name, void** function, std::int32_t version,
                              std::uint64_t flags, std::int32_t* status) {
  if (std::strcmp(name, "cuCtxGetDevice") != 0) {
    return emulated(name, function, version, flags | kLegacyStream, status);
  }
  *function = reinterpret_cast<void*>(&get_device);
  *status = 0;
  return 0;
}

struct Engine {
  penstock_interposer* table = nullptr;
  void* context = nullptr;
};

Engine open_engine(Draw& draw) {
  Engine engine;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  must(library != nullptr, "no emulated libcuda.so.1 on LD_LIBRARY_PATH");
  emulated = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  std::int32_t status = 0;
  emulated("cuInit", &found, 2000, kLegacyStream, &status);
  reinterpret_cast<std::int32_t (*)(unsigned)>(found)(0);
  emulated("cuDevicePrimaryCtxRetain", &found, 7000, kLegacyStream, &status);
  reinterpret_cast<std::int32_t (*)(void**, int)>(found)(&engine.context, 0);
  auto real = sized<penstock_real_driver>();
  real.version = PENSTOCK_INTERPOSE_VERSION;
  real.library = library;
  real.get_proc_address = get_proc_address;
  auto options = sized<penstock_interpose_options>();
  options.gpu_memory = (16 + 16 * draw.below(8)) * kMiB;
  options.safety = static_cast<std::int32_t>(draw.below(3));
  must(penstock_interpose(&real, &options, &engine.table) == PENSTOCK_OK, "no engine");
  return engine;
}

struct Blocks {
  std::vector<std::uint64_t> live;
  std::vector<std::uint64_t> pins;
};

void give_work(Draw& draw, const Engine& engine, Blocks& blocks) {
  std::vector<penstock_touch> touches(draw.below(6));
  for (penstock_touch& touch : touches) {
    touch.address = blocks.live.empty()
                        ? draw.odd()
                        : draw.odd_or(0.05, draw.one_of(blocks.live) + draw.below(kPage));
    touch.bytes = draw.chance(0.5) ? 0 : draw.odd_or(0.05, draw.below(8 * kMiB));
    touch.access = 1 + static_cast<std::uint32_t>(draw.below(draw.chance(0.1) ? 31 : 3));
  }
  auto work = sized<penstock_work>();
  work.kind = static_cast<std::int32_t>(draw.below(5));
  work.opaque = draw.chance(0.1) ? 1 : 0;
  work.function = draw.below(6);
  work.context = engine.context;
  work.stream = draw.below(3);
  work.touches = touches.data();
  work.count = static_cast<std::uint32_t>(touches.size());
  work.captured = draw.chance(0.05) ? 1 : 0;
  if (engine.table->begin(&work) == 0) engine.table->end(&work, 0);
}

}  // namespace

std::uint64_t interposed(Draw& draw) {
  static const Engine engine = open_engine(draw);
  static Blocks blocks;
  penstock_interposer& table = *engine.table;
  const std::uint64_t count = 10 + draw.below(60);
  for (std::uint64_t i = 0; i < count; ++i) {
    switch (draw.below(14)) {
      case 0:
      case 1:
      case 2: {
        std::uint64_t address = 0;
        const std::uint64_t bytes = draw.odd_or(0.05, 1 + draw.below(6 * kMiB));
        const auto ordered = static_cast<std::int32_t>(draw.below(2));
        if (table.allocate(bytes, engine.context, draw.below(3), ordered, &address) == 0) {
          blocks.live.push_back(address);
        }
        break;
      }
      case 3: {
        if (blocks.live.empty()) break;
        const std::uint64_t at = draw.below(blocks.live.size());
        table.release(blocks.live[at], engine.context, 0, static_cast<int>(draw.below(2)));
        blocks.live.erase(blocks.live.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      case 4:
        table.release(blocks.live.empty() ? draw.odd() : draw.one_of(blocks.live) + 1,
                      engine.context, 0, 0);
        break;
      case 5: {
        const std::uint64_t at = blocks.live.empty() ? draw.odd() : draw.one_of(blocks.live);
        std::uint64_t token = 0;
        if (table.pin(at, PENSTOCK_PIN_GRAPH, draw.chance(0.95) ? &token : nullptr) == 0) {
          blocks.pins.push_back(token);
        }
        break;
      }
      case 6:
        if (blocks.pins.empty()) break;
        table.unpin(draw.odd_or(0.1, blocks.pins.back()));
        blocks.pins.pop_back();
        break;
      case 7: {
        auto block = sized<penstock_block>();
        draw.shorten(block, 0.05);
        table.block_of(blocks.live.empty() ? draw.odd() : draw.one_of(blocks.live) + 9, &block);
        std::uint64_t free = 0;
        std::uint64_t total = 0;
        table.memory_info(engine.context, &free, &total);
        must(free <= total, "more is free than there is");
        break;
      }
      case 8:
        table.make_room(engine.context, draw.odd_or(0.2, draw.below(64 * kMiB)));
        break;
      case 9: {
        std::vector<char> words(1 + draw.below(512));
        table.summary(words.data(), words.size());
        break;
      }
      default:
        give_work(draw, engine, blocks);
    }
  }
  while (blocks.live.size() > 10) {
    table.release(blocks.live.back(), engine.context, 0, 0);
    blocks.live.pop_back();
  }
  return count;
}

}  // namespace penstock::fuzz
