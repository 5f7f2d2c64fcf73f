// SPDX-License-Identifier: Apache-2.0
// Programs whose work is announced: what is given stays right, whatever fails or runs beside it.
#include <atomic>
#include <memory>
#include <random>

#include "doctest/doctest.h"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;

TEST_CASE("program: what fits is resident, and nothing is announced or moved") {
  Bench bench({.budget = 200 * kGranule});
  Network network(bench, 12, 3 * kGranule + 512);
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  CHECK(bench.started() == 0);
  CHECK(bench.program().pager().stats().counters.bytes_in == 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: no word is wrong in random work on several streams") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Bench bench({.streams = 3,
                 .evicted = static_cast<Evicted>(seed % 3),
                 .seed = seed,
                 .max_delay_us = 150});
    std::mt19937_64 random(seed);
    std::vector<Tensor> live;
    for (int i = 0; i < 900; ++i) {
      const driver::Stream stream = bench.stream(random() % 3);
      if (live.size() < 12 || (live.size() < 40 && random() % 3 == 0)) {
        live.push_back(bench.make(8 + random() % (3 * kGranule), stream, random()));
      } else if (random() % 3 == 0) {
        const std::size_t which = random() % live.size();
        bench.drop(live[which]);
        live[which] = live.back();
        live.pop_back();
      } else {
        Tensor& a = live[random() % live.size()];
        Tensor& b = live[random() % live.size()];
        // Work on a tensor stays in its own stream's order.
        bench.order(b.stream, a.stream);
        if (&a == &b) {
          bench.work(a.stream, {&a}, {&a}, random());
        } else {
          bench.work(a.stream, {&a, &b}, {&a}, random());
          bench.order(a.stream, b.stream);
        }
      }
      if (i % 200 == 199) PENSTOCK_REQUIRE_OK(bench.program().allocator().empty_cache());
    }
    CHECK(bench.started() == 1);
    CHECK(bench.program().pager().stats().peak_device_bytes <= 20 * kGranule);
    for (const Tensor& tensor : live) bench.work(tensor.stream, {&tensor}, {}, 0);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: what was freed while it was away does not come back") {
  for (const Evicted evicted : {Evicted::kUnmapped, Evicted::kMapped}) {
    CAPTURE(static_cast<int>(evicted));
    Bench bench({.evicted = evicted});
    const Tensor away = bench.make(8 * kGranule, bench.stream(0), 5);
    std::vector<Tensor> others;
    for (unsigned i = 0; i < 30; ++i) {
      others.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    bench.drop(away);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    const Bytes before = bench.program().pager().stats().counters.bytes_in;
    Tensor next = bench.make(8 * kGranule, bench.stream(0), 6);
    CHECK(next.address == away.address);
    CHECK(bench.program().pager().stats().counters.bytes_in == before);
    // It has a content of its own from here on.
    for (int round = 0; round < 2; ++round) {
      for (const Tensor& other : others) bench.work(bench.stream(0), {&other}, {}, 0);
      bench.work(bench.stream(0), {&next}, {}, 0);
    }
    CHECK(bench.program().pager().stats().counters.bytes_in >= before + 8 * kGranule);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: what no budget can hold at once is out of memory, and the program goes on") {
  Bench bench({});
  Tensor small = bench.make(4 * kGranule, bench.stream(0), 5);
  auto large = bench.program().allocator().allocate(30 * kGranule, bench.stream(0));
  PENSTOCK_REQUIRE_OK(large.status());  // host memory holds it
  const engine::TouchedAddress touched{large.value(), 0, true};
  const Status status = bench.program().announce(bench.stream(0), std::span(&touched, 1));
  CHECK(status.code() == Code::kOutOfMemory);
  PENSTOCK_REQUIRE_OK(bench.program().allocator().free(large.value()));
  bench.work(bench.stream(0), {&small}, {&small}, 6);
  bench.work(bench.stream(0), {&small}, {}, 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: nothing leaves between a thread's announcement and its launch") {
  Bench bench({.streams = 2});
  Network network(bench, 12, 2 * kGranule + 8192);  // paging begins
  REQUIRE(bench.started() == 1);
  Tensor held = bench.make(3 * kGranule, bench.stream(1), 5);
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(1)));
  // Another thread has announced, and is slow to launch; meanwhile all of memory is used up.
  const engine::TouchedAddress touched{held.address, 0, false};
  PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(1), std::span(&touched, 1)));
  for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  auto wrong = std::make_shared<std::atomic<int>>(0);
  PENSTOCK_REQUIRE_OK(bench.device().launch(bench.stream(1), [held, wrong] {
    const auto* words = reinterpret_cast<const std::uint64_t*>(held.address);
    for (Bytes i = 0; i < held.bytes / 8; ++i) *wrong += words[i] == 5 ? 0 : 1;
  }));
  bench.program().given(bench.stream(1));
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(1)));
  CHECK(*wrong == 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

void fail_each_call(Evicted evicted) {
  std::int64_t calls = 1;
  for (std::int64_t fail_at = 0; fail_at < calls; fail_at += fail_at < 60 ? 1 : 37) {
    CAPTURE(fail_at);
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = kGranule};
    host.fail_at_call = fail_at;
    auto device = std::move(driver::open_host_driver(host)).value();
    const Result<driver::Stream> stream = device->create_stream();
    if (!stream.ok()) continue;
    {
      auto made = engine::Program::create(*device, {.budget = 12 * kGranule,
                                                    .page_bytes = kGranule,
                                                    .evicted = evicted,
                                                    .start_paging = [] {},
                                                    .widened = {}});
      int failed = made.ok() ? 0 : 1;
      auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
      std::vector<Tensor> tensors;
      const auto work = [&](Tensor& tensor, bool fill) {
        engine::Program& program = *made.value();
        const engine::TouchedAddress touched{tensor.address, 0, true};
        if (!program.announce(stream.value(), std::span(&touched, 1)).ok()) {
          ++failed;  // and so the program does not launch
          return false;
        }
        const Status launched = device->launch(stream.value(), [tensor, fill, wrong] {
          auto* words = reinterpret_cast<std::uint64_t*>(tensor.address);
          for (Bytes i = 0; i < tensor.bytes / 8; ++i) {
            if (!fill && words[i] != tensor.value) ++*wrong;
            words[i] = tensor.value;
          }
        });
        program.given(stream.value());
        if (!launched.ok()) ++failed;
        return launched.ok();
      };
      for (int i = 0; made.ok() && i < 10; ++i) {
        const auto got = made.value()->allocator().allocate(2 * kGranule, stream.value());
        if (!got.ok()) ++failed;
        if (!got.ok()) continue;
        Tensor tensor{got.value(), 2 * kGranule, stream.value(), 100u + static_cast<unsigned>(i)};
        if (work(tensor, true)) tensors.push_back(tensor);
      }
      for (int round = 0; round < 6; ++round) {
        for (Tensor& tensor : tensors) work(tensor, false);
      }
      CHECK(failed <= 2);  // a failure may show in the call after it as well
      PENSTOCK_REQUIRE_OK(device->synchronize(stream.value()));
      CHECK(*wrong == 0);
      if (fail_at == 0) calls = device->calls();
    }
    PENSTOCK_REQUIRE_OK(device->destroy_stream(stream.value()));
    CHECK(device->live() == driver::LiveCounts{});
  }
  CHECK(calls > 200);
}

TEST_CASE("program: any driver call may fail once; what was given stays right, nothing is left") {
  fail_each_call(Evicted::kUnmapped);
  fail_each_call(Evicted::kOnHost);
}

TEST_CASE("program: what a captured graph writes to stays, freed in its pool or not") {
  Bench bench({});
  Network network(bench, 12, 2 * kGranule + 8192);
  REQUIRE(bench.started() == 1);
  engine::Allocator& allocator = bench.program().allocator();
  const driver::Stream stream = bench.stream(0);
  PENSTOCK_REQUIRE_OK(allocator.begin_pool({7, 1}, [](driver::Stream) { return true; }));
  const auto temporary = allocator.allocate(2 * kGranule, stream);
  PENSTOCK_REQUIRE_OK(temporary.status());
  PENSTOCK_REQUIRE_OK(allocator.free(temporary.value()));
  PENSTOCK_REQUIRE_OK(allocator.end_pool({7, 1}));
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  // The replay, of which nothing is announced.
  PENSTOCK_REQUIRE_OK(bench.device().fill(temporary.value(), 9, 2 * kGranule, stream));
  for (int i = 0; i < 2; ++i) network.forward(bench, kGranule / 2);
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
  PENSTOCK_REQUIRE_OK(allocator.release_pool({7, 1}));
  PENSTOCK_REQUIRE_OK(allocator.empty_cache());
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: what a table of addresses holds is there for kernels that touch the table") {
  Bench bench({.evicted = Evicted::kUnmapped});
  const driver::Stream stream = bench.stream(0);
  Tensor table = bench.make(512, stream, 1);
  Tensor far = bench.make(2 * kGranule, stream, 7);
  std::vector<Tensor> others;
  const auto push_out = [&] {
    for (Tensor& other : others) bench.work(stream, {&other}, {&other}, 3);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
  };
  for (int i = 0; i < 12; ++i) others.push_back(bench.make(2 * kGranule, stream, 2));
  push_out();
  const auto touch_table = [&](engine::WorkKind kind) {
    const auto before = bench.program().pager().stats().counters.page_uses;
    const engine::TouchedAddress touched{table.address, 0, true};
    PENSTOCK_REQUIRE_OK(bench.program().announce(stream, std::span(&touched, 1), false, 0, kind));
    return bench.program().pager().stats().counters.page_uses - before;
  };
  const Addr held = far.address + 16;
  bench.bring(stream, table.address + 8, {held});
  push_out();
  CHECK(touch_table(engine::WorkKind::kKernel) >= 3);
  std::atomic<std::uint64_t> seen{0};
  PENSTOCK_REQUIRE_OK(bench.device().launch(
      stream, [&] { seen = *reinterpret_cast<const std::uint64_t*>(far.address + 16); }));
  bench.program().given(stream);
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
  CHECK(seen == 7);
  SUBCASE("a copy reaches nothing but the table") {
    push_out();
    CHECK(touch_table(engine::WorkKind::kCopy) <= 1);
    bench.program().given(stream);
  }
  SUBCASE("until something else is written there") {
    bench.bring(stream, table.address, {1, 2});
    push_out();
    CHECK(touch_table(engine::WorkKind::kKernel) <= 1);
    bench.program().given(stream);
  }
  SUBCASE("or the block is freed") {
    bench.drop(far);
    push_out();
    CHECK(touch_table(engine::WorkKind::kKernel) <= 1);
    bench.program().given(stream);
  }
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: pinned blocks stay where they are") {
  Bench bench({});
  Tensor pinned = bench.make(3 * kGranule, bench.stream(0), 77);
  Network network(bench, 12, 2 * kGranule + 8192);
  const Result<engine::Pin> pin = bench.program().pin(pinned.address + 100);
  PENSTOCK_REQUIRE_OK(pin.status());
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  // Work that nobody announced, as a replayed graph's is.
  auto wrong = std::make_shared<std::atomic<int>>(0);
  PENSTOCK_REQUIRE_OK(bench.device().launch(bench.stream(0), [pinned, wrong] {
    const auto* words = reinterpret_cast<const std::uint64_t*>(pinned.address);
    for (Bytes i = 0; i < pinned.bytes / 8; ++i) *wrong += words[i] == 77 ? 0 : 1;
  }));
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  CHECK(*wrong == 0);
  bench.program().unpin(pin.value());
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
