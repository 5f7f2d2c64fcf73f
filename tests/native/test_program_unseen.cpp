// SPDX-License-Identifier: Apache-2.0
// Work that reaches more than its parameters say: by addresses that copies brought to the device;
// and unseen, under the safety that promises to get it right: every evicted page's address leads to
// its copy on the host.
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

// Twelve more blocks than there is room for, so that nothing stays that is not touched.
struct Crowd {
  explicit Crowd(Bench& of) : bench(of) {
    for (int i = 0; i < 12; ++i) blocks.push_back(bench.make(2 * kGranule, bench.stream(0), 2));
  }
  void push_out() {
    for (Tensor& block : blocks) bench.work(bench.stream(0), {&block}, {&block}, 3);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  }
  Bench& bench;
  std::vector<Tensor> blocks;
};

// A kernel that is given `tables` and reads the word at the end of so many addresses from the
// first.
std::uint64_t read_through(Bench& bench, const std::vector<const Tensor*>& tables, Addr at,
                           int levels) {
  const driver::Stream stream = bench.stream(0);
  std::vector<engine::TouchedAddress> touched;
  for (const Tensor* table : tables) touched.push_back({table->address, 0, true});
  PENSTOCK_REQUIRE_OK(bench.program().announce(stream, touched));
  std::uint64_t seen = at;
  PENSTOCK_REQUIRE_OK(bench.device().launch(stream, [&seen, levels] {
    for (int i = 0; i <= levels; ++i) seen = *reinterpret_cast<const std::uint64_t*>(seen);
  }));
  bench.program().given(stream);
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
  return seen;
}

// How many pages a kernel that is given the block makes come in or stay.
std::uint64_t pages_for(Bench& bench, const Tensor& block) {
  const engine::TouchedAddress touched{block.address, 0, true};
  const auto before = bench.program().pager().stats().counters.page_uses;
  PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(0), std::span(&touched, 1)));
  bench.program().given(bench.stream(0));
  return bench.program().pager().stats().counters.page_uses - before;
}

}  // namespace

TEST_CASE("program: tables of tables are followed to their end") {
  Bench bench({});
  Tensor outer = bench.make(2 * kGranule, bench.stream(0), 1);
  Tensor inner = bench.make(2 * kGranule, bench.stream(0), 1);
  Tensor far = bench.make(2 * kGranule, bench.stream(0), 7);
  Crowd crowd(bench);
  bench.bring(bench.stream(0), inner.address + 8, {far.address + 16});
  bench.bring(bench.stream(0), outer.address, {inner.address + 8});
  crowd.push_out();
  CHECK(read_through(bench, {&outer}, outer.address, 2) == 7);
  crowd.push_out();
  // Both as parameters: the inner one has been touched when its own turn comes.
  CHECK(read_through(bench, {&outer, &inner}, inner.address + 8, 1) == 7);
  // One that leads back to itself.
  bench.bring(bench.stream(0), inner.address + 16, {outer.address, inner.address});
  crowd.push_out();
  CHECK(read_through(bench, {&inner}, inner.address + 16, 3) == 7);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a table that is copied on the device is one where it comes to lie") {
  Bench bench({});
  Tensor table = bench.make(2 * kGranule, bench.stream(0), 1);
  Tensor other = bench.make(2 * kGranule, bench.stream(0), 1);
  Tensor far = bench.make(2 * kGranule, bench.stream(0), 7);
  Crowd crowd(bench);
  bench.bring(bench.stream(0), table.address + 8, {far.address, far.address + 8});
  bench.copy(bench.stream(0), other.address + 64, table.address, 24);
  bench.bring(bench.stream(0), table.address + 8, {1, 2});
  crowd.push_out();
  CHECK(pages_for(bench, table) <= 3);
  crowd.push_out();
  CHECK(read_through(bench, {&other}, other.address + 64 + 16, 1) == 7);
  // Half of it is written over, by a copy of what holds none.
  bench.copy(bench.stream(0), other.address + 64 + 8, table.address + 8, 8);
  crowd.push_out();
  CHECK(read_through(bench, {&other}, other.address + 64 + 16, 1) == 7);
  bench.copy(bench.stream(0), other.address + 64 + 16, table.address + 8, 8);
  crowd.push_out();
  CHECK(pages_for(bench, other) <= 3);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: an address that comes in rows takes the place of what stood there") {
  Bench bench({});
  Tensor table = bench.make(2 * kGranule, bench.stream(0), 1);
  Tensor before = bench.make(2 * kGranule, bench.stream(0), 6);
  Tensor after = bench.make(2 * kGranule, bench.stream(0), 7);
  Crowd crowd(bench);
  bench.bring(bench.stream(0), table.address, {before.address});
  bench.bring(bench.stream(0), table.address, {after.address}, true);
  crowd.push_out();
  CHECK(pages_for(bench, table) <= 6);
  CHECK(read_through(bench, {&table}, table.address, 1) == 7);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: what a table reaches stays when it is copied to where no work is seen to go") {
  Bench bench({});
  Tensor table = bench.make(512, bench.stream(0), 1);
  Tensor far = bench.make(2 * kGranule, bench.stream(0), 7);
  Crowd crowd(bench);
  bench.bring(bench.stream(0), table.address, {far.address});
  const engine::TouchedAddress from{table.address, 8, false, false, true};
  PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(0), std::span(&from, 1), false, 0,
                                               engine::WorkKind::kCopy));
  bench.program().given(bench.stream(0));
  crowd.push_out();
  std::uint64_t seen = 0;
  PENSTOCK_REQUIRE_OK(bench.device().launch(
      bench.stream(0), [&] { seen = *reinterpret_cast<const std::uint64_t*>(far.address); }));
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  CHECK(seen == 7);
  bench.close();
  CHECK(bench.wrong() == 0);
}

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

TEST_CASE("program: work whose pages are there is not kept waiting by another thread's copy") {
  for (const Evicted evicted : {Evicted::kUnmapped, Evicted::kOnHost}) {
    Bench bench({.streams = 2, .evicted = evicted});
    Crowd crowd(bench);
    Tensor copied = bench.make(kGranule, bench.stream(0), 1);
    Tensor there = bench.make(kGranule, bench.stream(1), 1);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
    std::atomic<bool> launched{false};
    const engine::TouchedAddress from{copied.address, kGranule, false};
    PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(0), std::span(&from, 1), false, 0,
                                                 engine::WorkKind::kCopy));
    // The copy waits for the device, and that for what the other thread launches.
    std::thread other([&] {
      bench.work(bench.stream(1), {&there}, {}, 0);
      launched = true;
    });
    while (!launched) std::this_thread::yield();
    bench.program().given(bench.stream(0));
    other.join();
    bench.close();
    CHECK(bench.wrong() == 0);
  }
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
