// SPDX-License-Identifier: Apache-2.0
// Work that reaches more than anybody says, under the safety that promises to get it right: every
// evicted page's address leads to its copy on the host.
#include <random>
#include <thread>

#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;

// A kernel of which nothing is known but that it is one: checks a tensor and writes another value.
void work_unseen(Bench& bench, driver::Stream stream, Tensor& tensor, std::uint64_t value,
                 std::shared_ptr<std::atomic<std::int64_t>> wrong) {
  PENSTOCK_REQUIRE_OK(bench.program().announce(stream, {}, true));
  PENSTOCK_REQUIRE_OK(bench.device().launch(stream, [was = tensor, value, wrong] {
    auto* words = reinterpret_cast<std::uint64_t*>(was.address);
    for (Bytes i = 0; i < was.bytes / 8; ++i) {
      if (words[i] != was.value) ++*wrong;
      words[i] = value;
    }
  }));
  bench.program().given(stream);
  tensor.value = value;
}

}  // namespace

TEST_CASE("program: what work reaches unseen is there, on the device or on the host") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Bench bench({.streams = 2, .evicted = Evicted::kOnHost, .seed = seed, .max_delay_us = 100});
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    std::mt19937_64 random(seed);
    std::vector<Tensor> live;
    for (int i = 0; i < 600; ++i) {
      if (live.size() < 30) {
        live.push_back(bench.make(8 + random() % (3 * kGranule), bench.stream(random()), random()));
        continue;
      }
      const std::size_t which = random() % live.size();
      Tensor& tensor = live[which];
      if (random() % 8 == 0) {
        bench.drop(tensor);
        tensor = live.back();
        live.pop_back();
      } else if (random() % 2 == 0) {
        work_unseen(bench, tensor.stream, tensor, random(), wrong);
      } else {
        bench.work(tensor.stream, {&tensor}, {&tensor}, random());
      }
      if (i % 200 == 199) PENSTOCK_REQUIRE_OK(bench.program().allocator().empty_cache());
    }
    CHECK(bench.started() == 1);
    CHECK(bench.program().pager().stats().peak_device_bytes <= 20 * kGranule);
    CHECK(bench.program().pager().stats().counters.bytes_in > 0);
    for (Tensor& tensor : live) work_unseen(bench, tensor.stream, tensor, 0, wrong);
    bench.close();
    CHECK(bench.wrong() == 0);
    CHECK(*wrong == 0);
  }
}

TEST_CASE("program: a block that no seen work has touched yet is there for work that is not seen") {
  Bench bench({.evicted = Evicted::kOnHost});
  Network network(bench, 12, 2 * kGranule + 8192);  // paging begins
  REQUIRE(bench.started() == 1);
  auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
  auto got = bench.program().allocator().allocate(5 * kGranule, bench.stream(0));
  PENSTOCK_REQUIRE_OK(got.status());
  Tensor tensor{got.value(), 5 * kGranule, bench.stream(0), 0};
  PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(0), {}, true));
  PENSTOCK_REQUIRE_OK(bench.device().launch(bench.stream(0), [tensor] {
    auto* words = reinterpret_cast<std::uint64_t*>(tensor.address);
    for (Bytes i = 0; i < tensor.bytes / 8; ++i) words[i] = 77;
  }));
  bench.program().given(bench.stream(0));
  tensor.value = 77;
  network.forward(bench, kGranule / 2);
  bench.work(bench.stream(0), {&tensor}, {}, 0);
  work_unseen(bench, bench.stream(0), tensor, 78, wrong);
  network.forward(bench, kGranule / 2);
  work_unseen(bench, bench.stream(0), tensor, 79, wrong);
  bench.close();
  CHECK(bench.wrong() == 0);
  CHECK(*wrong == 0);
}

TEST_CASE("program: threads that give work at the same time find what they reach unseen") {
  Bench bench({.streams = 3, .evicted = Evicted::kOnHost, .seed = 3, .max_delay_us = 50});
  std::vector<std::vector<Tensor>> of_thread(3);
  for (int i = 0; i < 36; ++i) {
    const auto thread = static_cast<std::size_t>(i % 3);
    of_thread[thread].push_back(bench.make(kGranule, bench.stream(thread), 10));
  }
  REQUIRE(bench.started() == 1);
  auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 200; ++i) {
        Tensor& tensor = of_thread[t][random() % of_thread[t].size()];
        if (i % 2 == 0) {
          bench.work(bench.stream(t), {&tensor}, {&tensor}, random());
        } else {
          work_unseen(bench, bench.stream(t), tensor, random(), wrong);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bench.close();
  CHECK(bench.wrong() == 0);
  CHECK(*wrong == 0);
}

}  // namespace penstock::testing
