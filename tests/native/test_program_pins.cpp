// SPDX-License-Identifier: Apache-2.0
// Pins: of a block and a holder, so that neither an address that comes again nor a failure can take
// away what somebody else relies on.
#include <chrono>
#include <thread>
#include <vector>

#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kG = kProgramGranule;

engine::Pin pin(Bench& bench, Addr address) {
  const Result<engine::Pin> made = bench.program().pin(address);
  PENSTOCK_REQUIRE_OK(made.status());
  return made.value();
}

// Forty tensors of a granule in a budget of twenty: everything leaves in turn.
std::vector<Tensor> fill_beyond_budget(Bench& bench, driver::Stream stream) {
  std::vector<Tensor> made;
  for (std::uint64_t i = 0; i < 40; ++i) made.push_back(bench.make(kG, stream, 100 + i));
  return made;
}

TEST_CASE("pins: a block that is freed while pinned keeps its address until the pin goes") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    Bench bench({.streams = 2, .evicted = evicted});
    const Addr held = bench.program().allocator().allocate(kG, bench.stream(0)).value();
    const engine::Pin of_graph = pin(bench, held);
    CHECK(of_graph != engine::Pin{});
    PENSTOCK_REQUIRE_OK(bench.program().allocator().free(held));
    PENSTOCK_CHECK_CODE(bench.program().allocator().free(held), Code::kInvalidArgument);
    Tensor later = bench.make(3 * kG, bench.stream(0), 7);
    CHECK((held + kG <= later.address || later.address + later.bytes <= held));
    bench.program().unpin(of_graph);
    bench.program().unpin(of_graph);  // a token that has gone is nobody's
    const Tensor again = bench.make(kG, bench.stream(0), 8);
    CHECK(again.address == held);
    const std::vector<Tensor> others = fill_beyond_budget(bench, bench.stream(1));
    // What it reads waits behind other work; meanwhile everything else comes and goes.
    PENSTOCK_REQUIRE_OK(bench.device().launch(
        bench.stream(0), [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }));
    bench.work(bench.stream(0), {&later, &again}, {}, 0);
    for (const Tensor& other : others) bench.work(bench.stream(1), {&other}, {}, 0);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("pins: the memory of freed blocks comes back with their pins") {
  Bench bench({.evicted = Evicted::kMapped});
  std::vector<Addr> blocks;
  std::vector<engine::Pin> graph;
  for (int i = 0; i < 14; ++i) {
    blocks.push_back(bench.program().allocator().allocate(kG, bench.stream(0)).value());
    graph.push_back(pin(bench, blocks.back() + 64));
  }
  for (const Addr block : blocks) PENSTOCK_REQUIRE_OK(bench.program().allocator().free(block));
  for (const engine::Pin each : graph) bench.program().unpin(each);
  PENSTOCK_REQUIRE_OK(bench.program().allocator().empty_cache());
  fill_beyond_budget(bench, bench.stream(0));
  bench.make(8 * kG, bench.stream(0), 5);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("pins: one that finds no room is told, and changes nothing") {
  Bench bench({.streams = 2, .evicted = Evicted::kMapped});
  const Tensor away = bench.make(8 * kG, bench.stream(0), 3);
  const Tensor all = bench.make(20 * kG, bench.stream(0), 4);  // the other has left
  const std::vector<engine::TouchedAddress> touched{{all.address, 0, true}};
  PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(1), touched));
  PENSTOCK_CHECK_CODE(bench.program().pin(away.address).status(), Code::kOutOfMemory);
  bench.program().given(bench.stream(1));
  CHECK(pin(bench, 12345) == engine::Pin{});  // in no block
  bench.drop(all);
  const std::vector<Tensor> others = fill_beyond_budget(bench, bench.stream(1));
  for (int round = 0; round < 3; ++round) {
    bench.work(bench.stream(0), {&away}, {}, 0);
    for (const Tensor& other : others) bench.work(bench.stream(1), {&other}, {}, 0);
  }
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("pins: what is to stay stays once, and goes when it is freed") {
  Bench bench({.evicted = Evicted::kMapped});
  for (std::uint64_t i = 0; i < 60; ++i) {
    const Tensor shared = bench.make(2 * kG, bench.stream(0), i);
    for (int again = 0; again < 3; ++again) {
      PENSTOCK_REQUIRE_OK(bench.program().stay(shared.address + 8));
    }
    bench.drop(shared);
    const Tensor large = bench.make(18 * kG, bench.stream(0), i + 100);
    bench.work(bench.stream(0), {&large}, {}, 0);
    bench.drop(large);
  }
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
