// SPDX-License-Identifier: Apache-2.0
// A budget that pagers share with memory of others, on the emulated GPU: every word is checked.
#include <random>
#include <thread>

#include "adapters/torch_segments.hpp"
#include "allocator_bench.hpp"
#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "engine/paging/shared_budget.hpp"
#include "paged_program.hpp"

namespace penstock::testing {
namespace {

using engine::SharedBudget;

constexpr Bytes kLimit = 20 * kGranule;

ProgramOptions in_unmapped(std::uint64_t seed) {
  return {.writes = true,
          .evicted = seed % 2 == 0 ? engine::Evicted::kMapped : engine::Evicted::kUnmapped,
          .seed = seed,
          .max_delay_us = 100};
}

void check_right(PagedProgram& program) {
  auto wrong = program.wrong_on_host();
  PENSTOCK_REQUIRE_OK(wrong.status());
  CHECK(wrong.value() == 0);
  CHECK(program.wrong() == 0);
}

TEST_CASE("shared budget: pages leave for others, and come back") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    SharedBudget shared(kLimit);
    PagedProgram program(in_unmapped(seed));
    PENSTOCK_REQUIRE_OK(program.open());
    PENSTOCK_REQUIRE_OK(shared.join(program.pager()));
    for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    for (int layer = 0; layer < 6; ++layer) PENSTOCK_REQUIRE_OK(program.layer(layer));
    PENSTOCK_REQUIRE_OK(shared.take(9 * kGranule));  // in the middle of an iteration
    CHECK(program.pager().stats().budget == 11 * kGranule);
    CHECK(program.pager().stats().device_bytes <= 11 * kGranule);
    for (int layer = 6; layer < 12; ++layer) PENSTOCK_REQUIRE_OK(program.layer(layer));
    for (int round = 0; round < 2; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    CHECK(program.pager().resize(kLimit).code() == Code::kOutOfMemory);
    PENSTOCK_REQUIRE_OK(shared.put_back(9 * kGranule));
    PENSTOCK_REQUIRE_OK(program.pager().resize(kLimit));
    for (int round = 0; round < 2; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    check_right(program);
    shared.leave(program.pager());
    CHECK(shared.use().pagers == 0);
    CHECK(shared.put_back(1).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("shared budget: a device that is full before the budget is an error") {
  const auto host =
      driver::open_host_driver({.capacity = 6 * kGranule, .granularity = kGranule}).value();
  SharedBudget shared(kLimit);
  const auto pager = engine::Pager::create(
      *host,
      {.budget = 2 * kGranule, .chunk_bytes = kGranule, .evicted = engine::Evicted::kUnmapped});
  PENSTOCK_REQUIRE_OK(pager.status());
  engine::Pager& it = *pager.value();
  PENSTOCK_REQUIRE_OK(shared.join(it));
  const auto range = it.create_range(8 * kGranule, engine::RangeKind::kPaged);
  PENSTOCK_REQUIRE_OK(range.status());
  const Addr address = it.range(range.value()).address;
  const auto all = it.define_use({{address, 8 * kGranule, false}});
  const auto some = it.define_use({{address, 2 * kGranule, false}});
  const auto stream = host->create_stream().value();
  CHECK(it.begin(all.value(), stream).code() == Code::kOutOfMemory);
  PENSTOCK_CHECK_OK(it.begin(some.value(), stream));
  PENSTOCK_CHECK_OK(it.end(some.value(), stream));
  shared.leave(it);
  PENSTOCK_CHECK_OK(host->destroy_stream(stream));
}

TEST_CASE("shared budget: what is in use stays, and the error has the numbers") {
  SharedBudget shared(kLimit);
  PagedProgram program(in_unmapped(1));
  PENSTOCK_REQUIRE_OK(program.open());
  PENSTOCK_REQUIRE_OK(shared.join(program.pager()));
  PENSTOCK_REQUIRE_OK(program.sweep());
  PENSTOCK_REQUIRE_OK(program.pager().begin(program.use(0), program.stream()));
  const Status refused = shared.take(18 * kGranule);  // a layer is 4 pages
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(refused.message().find("1280 KiB") != std::string::npos);  // the budget
  CHECK(shared.use().others == 0);
  PENSTOCK_REQUIRE_OK(shared.take(16 * kGranule));
  PENSTOCK_REQUIRE_OK(program.kernel(0));
  PENSTOCK_REQUIRE_OK(program.pager().end(program.use(0), program.stream()));
  PENSTOCK_REQUIRE_OK(program.layer(0));
  // Others took what the next layers share with nobody; a use that begins gets what is free again.
  PENSTOCK_REQUIRE_OK(shared.put_back(16 * kGranule));
  PENSTOCK_REQUIRE_OK(program.sweep());
  check_right(program);
  shared.leave(program.pager());
}

TEST_CASE("shared budget: a use takes what is free where its pager has too little") {
  SharedBudget shared(kLimit);
  PagedProgram program(in_unmapped(3));
  PENSTOCK_REQUIRE_OK(program.open());
  PENSTOCK_REQUIRE_OK(shared.join(program.pager()));
  PENSTOCK_REQUIRE_OK(shared.take(kLimit));
  CHECK(program.pager().stats().budget == 0);
  CHECK(program.layer(0).code() == Code::kOutOfMemory);
  PENSTOCK_REQUIRE_OK(shared.put_back(5 * kGranule));
  PENSTOCK_REQUIRE_OK(program.layer(0));
  PENSTOCK_REQUIRE_OK(program.sweep());
  const SharedBudget::Use use = shared.use();
  CHECK(use.pagers + use.others <= use.limit);
  check_right(program);
  shared.leave(program.pager());
}

TEST_CASE("shared budget: who has rested longest gives first") {
  SharedBudget shared(2 * kLimit);
  PagedProgram first(in_unmapped(1)), second(in_unmapped(2));
  for (PagedProgram* program : {&first, &second}) {
    PENSTOCK_REQUIRE_OK(program->open());
    PENSTOCK_REQUIRE_OK(shared.join(program->pager()));
    PENSTOCK_REQUIRE_OK(program->sweep());
  }
  PENSTOCK_REQUIRE_OK(shared.make_room(8 * kGranule, &second.pager()));
  CHECK(first.pager().stats().budget == 12 * kGranule);
  PENSTOCK_REQUIRE_OK(second.pager().resize(28 * kGranule));
  PENSTOCK_REQUIRE_OK(first.sweep());
  PENSTOCK_REQUIRE_OK(shared.take(6 * kGranule));
  CHECK(first.pager().stats().budget == 12 * kGranule);
  CHECK(second.pager().stats().budget == 22 * kGranule);
  for (PagedProgram* program : {&first, &second}) {
    check_right(*program);
    shared.leave(program->pager());
  }
}

TEST_CASE("shared budget: an allocator's chunks count, and make pages leave") {
  SharedBudget shared(kLimit);
  PagedProgram program(in_unmapped(4));
  PENSTOCK_REQUIRE_OK(program.open());
  engine::BudgetedDriver counted(program.device());
  {
    auto made = engine::Allocator::create(counted, small_options());
    PENSTOCK_REQUIRE_OK(made.status());
    engine::Allocator& allocator = *made.value();
    auto early = allocator.allocate(3 * kGranule, program.stream());
    PENSTOCK_REQUIRE_OK(early.status());
    CHECK(program.pager().resize(16 * kGranule).ok());
    PENSTOCK_REQUIRE_OK(counted.count_in(&shared));
    CHECK(shared.use().others >= 3 * kGranule);
    shared.set_reclaim([&allocator] { (void)allocator.empty_cache(); });
    PENSTOCK_REQUIRE_OK(shared.join(program.pager()));
    PENSTOCK_REQUIRE_OK(program.sweep());
    std::mt19937 random(7);
    std::vector<Addr> live;
    for (int step = 0; step < 300; ++step) {
      if (live.size() < 3 && random() % 2 == 0) {
        auto block = allocator.allocate((1 + random() % 5) * kGranule, program.stream());
        PENSTOCK_REQUIRE_OK(block.status());
        live.push_back(block.value());
      } else if (!live.empty()) {
        PENSTOCK_REQUIRE_OK(allocator.free(live.back()));
        live.pop_back();
      }
      if (step % 3 == 0) PENSTOCK_REQUIRE_OK(program.layer(static_cast<int>(random() % 12)));
      if (step % 20 == 0) PENSTOCK_REQUIRE_OK(allocator.empty_cache());
      const SharedBudget::Use use = shared.use();
      CHECK(use.pagers + use.others <= use.limit);
      CHECK(program.device().live().chunks * static_cast<std::int64_t>(kGranule) <=
            static_cast<std::int64_t>(kLimit));
    }
    // As much as there is but what one layer needs; then what nobody can give.
    for (const Addr block : live) PENSTOCK_REQUIRE_OK(allocator.free(block));
    PENSTOCK_REQUIRE_OK(allocator.empty_cache());
    auto most = allocator.allocate(15 * kGranule, program.stream());
    PENSTOCK_REQUIRE_OK(most.status());
    CHECK(allocator.allocate(4 * kGranule, program.stream()).status().code() == Code::kOutOfMemory);
    PENSTOCK_REQUIRE_OK(allocator.free(most.value()));
    PENSTOCK_REQUIRE_OK(allocator.free(early.value()));
    check_right(program);
    shared.leave(program.pager());
    PENSTOCK_REQUIRE_OK(program.device().synchronize(program.stream()));
  }
  CHECK(shared.use().others == 0);
}

TEST_CASE("shared budget: several threads, each with its pager") {
  SharedBudget shared(3 * kLimit);
  std::vector<std::unique_ptr<PagedProgram>> programs;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    programs.push_back(std::make_unique<PagedProgram>(in_unmapped(seed)));
    PENSTOCK_REQUIRE_OK(programs.back()->open());
    PENSTOCK_REQUIRE_OK(shared.join(programs.back()->pager()));
  }
  std::vector<std::thread> threads;
  std::vector<Status> first(programs.size());  // that failed
  for (std::size_t i = 0; i < programs.size(); ++i) {
    threads.emplace_back([&shared, &program = *programs[i], &status = first[i], i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int round = 0; round < 12 && status.ok(); ++round) {
        const Bytes bytes = (random() % 10) * kGranule;
        status = shared.take(bytes);
        if (!status.ok()) break;
        status = program.sweep();
        if (Status put = shared.put_back(bytes); status.ok()) status = std::move(put);
        (void)program.pager().resize(kLimit);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : first) PENSTOCK_CHECK_OK(status);
  for (auto& program : programs) {
    check_right(*program);
    shared.leave(program->pager());
  }
  CHECK(shared.use().pagers == 0);
}

// The table of the driver's functions that PyTorch's allocator calls, and a device of 12 granules.
struct TorchTable {
  static inline Bytes left = 12 * kGranule;
  static inline std::uint64_t last = 0;
  static int create(std::uint64_t* handle, std::size_t size, const void*, unsigned long long) {
    if (size > left) return 2;
    left -= size;
    *handle = ++last;
    return 0;
  }
  static int release(std::uint64_t) { return 0; }
};

TEST_CASE("shared budget: segments of PyTorch's allocator are counted, and pages leave for them") {
  using Create = int (*)(std::uint64_t*, std::size_t, const void*, unsigned long long);
  using Release = int (*)(std::uint64_t);
  void* const create = reinterpret_cast<void*>(&TorchTable::create);
  void* const release = reinterpret_cast<void*>(&TorchTable::release);
  void* table[4] = {nullptr, release, create, nullptr};
  CHECK_FALSE(adapters::watch_table(table, 2, create, release));  // no such value within
  CHECK(table[1] == release);
  REQUIRE(adapters::watch_table(table, 4, create, release));
  const auto creating = reinterpret_cast<Create>(table[2]);
  const auto releasing = reinterpret_cast<Release>(table[1]);
  // type, handle types, then where: on a device, the fourth.
  struct {
    int type = 1, handle_types = 0, place = 1, device = 3;
    void* metadata = nullptr;
    std::uint64_t flags = 0;
  } prop;
  std::uint64_t early = 0;
  CHECK(creating(&early, 2 * kGranule, &prop, 0) == 0);
  SharedBudget shared(kLimit);
  PagedProgram program(in_unmapped(1));
  PENSTOCK_REQUIRE_OK(program.open());
  PENSTOCK_REQUIRE_OK(shared.join(program.pager()));
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  PENSTOCK_REQUIRE_OK(adapters::count_segments_in(3, &shared));
  CHECK(shared.use().others == 2 * kGranule);
  std::uint64_t handle = 0;
  CHECK(creating(&handle, 8 * kGranule, &prop, 0) == 0);
  CHECK(program.pager().stats().budget <= 10 * kGranule);
  PENSTOCK_REQUIRE_OK(program.sweep());
  std::uint64_t none = 0;
  CHECK(creating(&none, 3 * kGranule, &prop, 0) == 2);   // the device has no more
  CHECK(creating(&none, 30 * kGranule, &prop, 0) == 2);  // nor has the budget
  prop.place = 2;
  CHECK(creating(&none, kGranule, &prop, 0) == 0);  // on the host: not ours to count
  shared.new_peak();
  CHECK(releasing(handle) == 0);
  CHECK(shared.use().others_peak == 10 * kGranule);
  CHECK(shared.use().others == 2 * kGranule);
  PENSTOCK_REQUIRE_OK(program.sweep());
  check_right(program);
  PENSTOCK_REQUIRE_OK(adapters::count_segments_in(3, nullptr));
  CHECK(shared.use().others == 0);
  shared.leave(program.pager());
}

TEST_CASE("kinds of iterations: the order of each is known when it comes again") {
  PagedProgram program({.budget = 14 * kGranule, .evicted = engine::Evicted::kUnmapped});
  PENSTOCK_REQUIRE_OK(program.open());
  const std::vector<int> orders[] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {11, 3, 7}};
  const auto pass = [&](std::int64_t kind) -> std::uint64_t {
    const std::uint64_t before = program.pager().stats().counters.mismatches;
    PENSTOCK_REQUIRE_OK(program.pager().iteration(kind));
    for (const int layer : orders[kind]) PENSTOCK_REQUIRE_OK(program.layer(layer));
    return program.pager().stats().counters.mismatches - before;
  };
  for (int round = 0; round < 2; ++round) {
    pass(0);
    pass(1);
  }
  for (int round = 0; round < 3; ++round) {
    CHECK(pass(0) == 0);
    CHECK(pass(1) == 0);
    CHECK(pass(1) == 0);
  }
  check_right(program);
}

TEST_CASE("kinds of iterations that come in turns are planned as one") {
  // Two models of 19 pages, and room for 25: the 12 that do not fit come in once a round, and a few
  // that others go through.
  PagedProgram program({.budget = 25 * kGranule, .evicted = engine::Evicted::kUnmapped});
  PENSTOCK_REQUIRE_OK(program.open());
  const auto pass = [&](std::int64_t kind) {
    PENSTOCK_REQUIRE_OK(program.pager().iteration(kind));
    for (int layer = 0; layer < 6; ++layer) {
      PENSTOCK_REQUIRE_OK(program.layer(static_cast<int>(kind) * 6 + layer));
    }
  };
  for (int round = 0; round < 5; ++round) {
    pass(0);
    pass(1);
  }
  const std::uint64_t before = program.pager().stats().counters.bytes_in;
  const std::uint64_t plans = program.pager().stats().counters.plans;
  for (int round = 0; round < 10; ++round) {
    pass(0);
    pass(1);
  }
  const auto after = program.pager().stats();
  CHECK(after.counters.plans == plans);
  CHECK(after.counters.mismatches == 0);
  const Bytes a_round = (after.counters.bytes_in - before) / 10;
  CHECK(a_round <= 17 * kGranule);
  check_right(program);
}

}  // namespace
}  // namespace penstock::testing
