// SPDX-License-Identifier: Apache-2.0
// The pager on the emulated GPU: every word a kernel reads is checked.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <random>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/forwarding.hpp"
#include "paged_program.hpp"

namespace penstock::testing {
namespace {

engine::Evicted evicted(bool unmapped) {
  return unmapped ? engine::Evicted::kUnmapped : engine::Evicted::kMapped;
}

std::int64_t settled_wrong(PagedProgram& program) {
  PENSTOCK_REQUIRE_OK(program.device().synchronize(program.stream()));
  return program.wrong();
}

TEST_CASE("pager: a sweep larger than the budget, with delays in every stream") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    PagedProgram program({.evicted = evicted(seed % 3 == 0), .seed = seed, .max_delay_us = 300});
    PENSTOCK_REQUIRE_OK(program.open());
    for (int round = 0; round < 5; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    CHECK(settled_wrong(program) == 0);
    const engine::PagerStats stats = program.pager().stats();
    CHECK(stats.peak_device_bytes <= 20 * kGranule);
    CHECK(stats.counters.mismatches == 0);
    program.close();
    CHECK(program.device().live() == driver::LiveCounts{});
  }
}

TEST_CASE("pager: a steady sweep maps nothing, demands nothing, and moves what was planned") {
  PagedProgram program({});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  PENSTOCK_REQUIRE_OK(program.pager().iteration());
  const engine::PagerStats before = program.pager().stats();
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  CHECK(settled_wrong(program) == 0);
  PENSTOCK_REQUIRE_OK(program.pager().iteration());
  const engine::PagerStats after = program.pager().stats();
  CHECK(after.counters.map_calls == before.counters.map_calls);
  CHECK(after.counters.unmap_calls == before.counters.unmap_calls);
  CHECK(after.counters.demanded_pages == before.counters.demanded_pages);
  CHECK(after.counters.plans == before.counters.plans);
  CHECK(after.iteration_bytes_in == after.planned_bytes_in);
  CHECK(after.planned_bytes_in > 0);
  CHECK(after.stalls.iterations > 0);
}

TEST_CASE("pager: everything fits, and nothing moves any more") {
  PagedProgram program({.budget = 64 * kGranule});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  const Bytes moved = program.pager().stats().counters.bytes_in;
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  CHECK(program.pager().stats().counters.bytes_in == moved);
  CHECK(moved == program.range().bytes);
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: what kernels write is written back, and comes in again") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    PagedProgram program(
        {.writes = true, .evicted = evicted(seed % 2 == 0), .seed = seed, .max_delay_us = 200});
    PENSTOCK_REQUIRE_OK(program.open());
    for (int round = 0; round < 6; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    auto wrong = program.wrong_on_host();
    PENSTOCK_REQUIRE_OK(wrong.status());
    CHECK(wrong.value() == 0);
    CHECK(program.wrong() == 0);
    CHECK(program.pager().stats().counters.bytes_out > 0);
  }
}

TEST_CASE("pager: budgets from the smallest up, written and clean") {
  for (Bytes chunks = 5; chunks <= 40; chunks += 3) {
    CAPTURE(chunks);
    PagedProgram program({.budget = chunks * kGranule,
                          .writes = true,
                          .evicted = evicted(chunks % 2 == 0),
                          .seed = chunks,
                          .max_delay_us = 50});
    PENSTOCK_REQUIRE_OK(program.open());
    CHECK(program.pager().smallest() <= chunks * kGranule);
    for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    CHECK(settled_wrong(program) == 0);
    CHECK(program.pager().stats().peak_device_bytes <= chunks * kGranule);
  }
}

TEST_CASE("pager: chunks beyond all bounds are refused with the numbers") {
  for (const Bytes chunk : {~Bytes{0}, ~Bytes{0} - 4096, Bytes{1} << 63}) {
    const auto device = std::move(driver::open_host_driver({.granularity = kGranule})).value();
    const auto made =
        engine::Pager::create(*device, {.budget = 8 * kGranule, .chunk_bytes = chunk});
    CHECK(made.status().code() == Code::kOutOfMemory);
    // A budget as large takes the chunk, which then cannot be made.
    const auto huge = engine::Pager::create(*device, {.budget = ~Bytes{0}, .chunk_bytes = chunk});
    if (!huge.ok()) CHECK(huge.status().code() == Code::kOutOfMemory);
  }
}

TEST_CASE("pager: a budget below the largest use is refused with the numbers") {
  PagedProgram program({.budget = 3 * kGranule});
  PENSTOCK_REQUIRE_OK(program.open());
  const Status status = program.sweep();
  CHECK(status.code() == Code::kOutOfMemory);
  CHECK(program.pager().smallest() > 3 * kGranule);
  CHECK(program.pager().resize(program.pager().smallest() - 1).code() == Code::kOutOfMemory);
  PENSTOCK_REQUIRE_OK(program.pager().resize(program.pager().smallest()));
  PENSTOCK_REQUIRE_OK(program.sweep());
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: another order is noticed, correct at once, and learned") {
  PagedProgram program({.writes = true, .seed = 5, .max_delay_us = 100});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  std::vector<int> order(12);
  std::iota(order.rbegin(), order.rend(), 0);
  PENSTOCK_REQUIRE_OK(program.sweep(order));
  CHECK(program.pager().stats().counters.mismatches > 0);
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep(order));
  PENSTOCK_REQUIRE_OK(program.pager().iteration());
  const engine::PagerStats learned = program.pager().stats();
  for (int round = 0; round < 2; ++round) PENSTOCK_REQUIRE_OK(program.sweep(order));
  CHECK(program.pager().stats().counters.mismatches == learned.counters.mismatches);
  CHECK(program.pager().stats().counters.plans == learned.counters.plans);
  CHECK(settled_wrong(program) == 0);
}

void run_random_orders(bool unmapped) {
  CAPTURE(unmapped);
  std::mt19937 random(7);
  PagedProgram program({.budget = 13 * kGranule,
                        .writes = true,
                        .evicted = evicted(unmapped),
                        .seed = 3,
                        .max_delay_us = 30});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 60; ++round) {
    std::vector<int> order(1 + random() % 20);
    for (int& number : order) number = static_cast<int>(random() % 12);
    PENSTOCK_REQUIRE_OK(program.sweep(order));
  }
  auto wrong = program.wrong_on_host();
  PENSTOCK_REQUIRE_OK(wrong.status());
  CHECK(wrong.value() == 0);
  CHECK(program.wrong() == 0);
  CHECK(program.pager().stats().peak_device_bytes <= 13 * kGranule);
}

TEST_CASE("pager: random orders, repeats and broken-off iterations stay correct") {
  run_random_orders(false);
  run_random_orders(true);
}

void run_nested(bool unmapped) {
  CAPTURE(unmapped);
  PagedProgram program(
      {.budget = 14 * kGranule, .evicted = evicted(unmapped), .seed = 9, .max_delay_us = 200});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 4; ++round) {
    PENSTOCK_REQUIRE_OK(program.pager().iteration());
    PENSTOCK_REQUIRE_OK(program.pager().begin(program.use(0), program.stream()));
    for (int inner = 1; inner < 12; ++inner) PENSTOCK_REQUIRE_OK(program.layer(inner));
    PENSTOCK_REQUIRE_OK(program.kernel(0));
    PENSTOCK_REQUIRE_OK(program.pager().end(program.use(0), program.stream()));
  }
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: uses that nest keep both resident") {
  run_nested(false);
  run_nested(true);
}

TEST_CASE("pager: there and back, what stays over the end is no reason to plan anew") {
  std::vector<int> order(12);
  std::iota(order.begin(), order.end(), 0);
  order.insert(order.end(), order.rbegin(), order.rend());
  for (const int kind : {0, 1, 2, 3}) {
    const bool writes = kind % 2 == 1;
    const bool unmapped = kind > 1;
    CAPTURE(writes);
    CAPTURE(unmapped);
    PagedProgram program(
        {.writes = writes, .evicted = evicted(unmapped), .seed = 3, .max_delay_us = 50});
    PENSTOCK_REQUIRE_OK(program.open());
    for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep(order));
    PENSTOCK_REQUIRE_OK(program.pager().iteration());
    const engine::PagerStats before = program.pager().stats();
    for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep(order));
    PENSTOCK_REQUIRE_OK(program.pager().iteration());
    const engine::PagerStats after = program.pager().stats();
    CHECK(settled_wrong(program) == 0);
    CHECK(after.counters.plans == before.counters.plans);
    CHECK(after.counters.demanded_pages == before.counters.demanded_pages);
    CHECK(after.iteration_bytes_in == after.planned_bytes_in);
    CHECK(after.planned_bytes_in > 0);
  }
}

TEST_CASE("pager: what is forgotten is copied neither out nor in, until it is written") {
  const Bytes layer = 2 * kGranule;
  PagedProgram program({.layer_bytes = layer, .budget = 8 * kGranule, .writes = true});
  PENSTOCK_REQUIRE_OK(program.open());
  engine::Pager& pager = program.pager();
  const Addr address = program.range().address;
  const auto use = [&] {
    PENSTOCK_REQUIRE_OK(pager.begin(program.use(0), program.stream()));
    PENSTOCK_REQUIRE_OK(pager.end(program.use(0), program.stream()));
  };
  const auto moved = [&] {
    const engine::Counters counters = pager.stats().counters;
    return std::pair(counters.bytes_in, counters.bytes_out);
  };
  use();
  CHECK(moved() == std::pair(layer, Bytes{0}));
  // All but a byte: the last page is not in it whole.
  PENSTOCK_REQUIRE_OK(pager.forget(address, layer - 1));
  PENSTOCK_REQUIRE_OK(pager.flush(address, layer));
  CHECK(moved() == std::pair(layer, kGranule));
  for (int other = 1; other < 6; ++other) PENSTOCK_REQUIRE_OK(program.layer(other));
  const auto before = moved();
  use();
  CHECK(moved().first == before.first + kGranule);
  PENSTOCK_REQUIRE_OK(pager.forget(address, layer));
  PENSTOCK_REQUIRE_OK(pager.flush(address, layer));
  const Bytes out = moved().second;
  use();  // written again
  PENSTOCK_REQUIRE_OK(pager.flush(address, layer));
  CHECK(moved().second == out + layer);
  CHECK(pager.forget(address + program.range().bytes, 1).code() == Code::kInvalidArgument);
}

TEST_CASE("pager: what is cool leaves before what was used longer ago, until it is used") {
  const Bytes layer = 2 * kGranule;
  PagedProgram program({.layer_bytes = layer, .budget = 8 * kGranule});
  PENSTOCK_REQUIRE_OK(program.open());
  engine::Pager& pager = program.pager();
  const auto cool = [&](int which) {
    PENSTOCK_REQUIRE_OK(pager.cool(program.range().address + Bytes(which) * layer, layer));
  };
  const auto comes = [&](int which) {
    const Bytes before = pager.stats().counters.bytes_in;
    PENSTOCK_REQUIRE_OK(program.layer(which));
    return pager.stats().counters.bytes_in - before;
  };
  for (int each = 0; each < 4; ++each) CHECK(comes(each) == layer);
  cool(3);
  CHECK(comes(4) == layer);
  for (const int stays : {0, 1, 2}) CHECK(comes(stays) == 0);
  CHECK(comes(3) == layer);
  cool(0);
  CHECK(comes(0) == 0);
  CHECK(comes(5) == layer);
  CHECK(comes(0) == 0);
  CHECK(pager.cool(program.range().address + program.range().bytes, 1).code() ==
        Code::kInvalidArgument);
}

void run_resizes(bool unmapped) {
  CAPTURE(unmapped);
  std::mt19937 random(11);
  PagedProgram program(
      {.writes = true, .evicted = evicted(unmapped), .seed = 2, .max_delay_us = 50});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 25; ++round) {
    const Bytes chunks = 6 + random() % 40;
    PENSTOCK_REQUIRE_OK(program.pager().resize(chunks * kGranule));
    PENSTOCK_REQUIRE_OK(program.sweep());
    CHECK(program.pager().stats().device_bytes <= chunks * kGranule);
  }
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: the budget changes between sweeps") {
  run_resizes(false);
  run_resizes(true);
}

TEST_CASE("pager: a steady sweep beside a mapper demands nothing and is not planned anew") {
  PagedProgram program({.evicted = evicted(true), .seed = 6, .max_delay_us = 100});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  PENSTOCK_REQUIRE_OK(program.pager().iteration());
  const engine::PagerStats before = program.pager().stats();
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  PENSTOCK_REQUIRE_OK(program.pager().iteration());
  const engine::PagerStats after = program.pager().stats();
  CHECK(after.counters.demanded_pages == before.counters.demanded_pages);
  CHECK(after.counters.plans == before.counters.plans);
  CHECK(after.iteration_bytes_in == after.planned_bytes_in);
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: as many pages are there as there are slots") {
  PagedProgram program({});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 3; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  std::uint64_t resident = 0;
  for (Bytes offset = 0; offset < program.range().bytes; offset += kGranule) {
    const auto there = program.pager().is_resident(program.range().address + offset);
    REQUIRE(there.ok());
    resident += there.value();
  }
  const engine::PagerStats stats = program.pager().stats();
  CHECK(stats.slots < stats.pages);
  CHECK(resident == stats.slots);
}

TEST_CASE("pager: mistakes are refused and change nothing") {
  PagedProgram program({});
  PENSTOCK_REQUIRE_OK(program.open());
  CHECK(program.pager().begin(99, program.stream()).code() == Code::kInvalidArgument);
  CHECK(program.pager().end(0, program.stream()).code() == Code::kInvalidArgument);
  CHECK(program.pager().define_use({{1, 1, false}}).status().code() == Code::kInvalidArgument);
  const Addr end = program.range().address + program.range().bytes;
  CHECK(program.pager().define_use({{end - 1, 2, false}}).status().code() ==
        Code::kInvalidArgument);
  CHECK(program.pager().fetch(1, 1).code() == Code::kInvalidArgument);
  CHECK(program.pager().is_resident(1).status().code() == Code::kInvalidArgument);
  CHECK(program.pager().create_range(0, engine::RangeKind::kPaged).status().code() ==
        Code::kInvalidArgument);
  PENSTOCK_REQUIRE_OK(program.sweep());
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: a plan that is made while pages move is followed, and not made anew each time") {
  ProgramOptions options{.budget = 21 * kGranule, .seed = 5, .max_delay_us = 300};
  SUBCASE("streams keep the order") { options.evicted = evicted(false); }
  SUBCASE("a mapper does") { options.evicted = evicted(true); }
  PagedProgram program(options);
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  for (const Bytes budget : {20, 19, 18, 19, 21}) {
    CAPTURE(budget);
    PENSTOCK_REQUIRE_OK(program.pager().resize(budget * kGranule));
    PENSTOCK_REQUIRE_OK(program.sweep());
    const auto before = program.pager().stats().counters;
    for (int round = 0; round < 10; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    const auto after = program.pager().stats().counters;
    CHECK(after.plans - before.plans <= 2);
    CHECK(after.demanded_pages - before.demanded_pages < 10);
  }
  CHECK(settled_wrong(program) == 0);
}

TEST_CASE("pager: a failure at any driver call is a clean error and leaves nothing behind") {
  ProgramOptions small{.layers = 5, .budget = 9 * kGranule, .writes = true};
  SUBCASE("streams keep the order") { small.evicted = evicted(false); }
  SUBCASE("a mapper does") { small.evicted = evicted(true); }
  const bool unmapped = small.evicted == evicted(true);
  const auto run = [](PagedProgram& program) -> Status {
    PENSTOCK_TRY(program.open());
    for (int round = 0; round < 3; ++round) PENSTOCK_TRY(program.sweep());
    return program.wrong_on_host().status();
  };
  std::int64_t calls = 0;
  {
    PagedProgram program(small);
    PENSTOCK_REQUIRE_OK(run(program));
    calls = program.device().calls();
  }
  REQUIRE(calls > 100);
  int failed = 0;
  for (std::int64_t call = 1; call <= calls; ++call) {
    CAPTURE(call);
    ProgramOptions options = small;
    options.fail_at_call = call;
    PagedProgram program(options);
    const Status status = run(program);
    failed += !status.ok();
    if (!status.ok()) CHECK_FALSE(status.message().empty());
    CHECK(status.message().find("does not come") == std::string::npos);  // it says why
    program.close();
    CHECK(program.device().live() == driver::LiveCounts{});
    CHECK(program.wrong() == 0);
  }
  // A page that fails to come ahead of its use comes when that begins.
  CHECK(failed > calls / (unmapped ? 4 : 2));
}

// Neither copies out nor maps while it refuses.
class Refusing : public driver::ForwardingDriver {
 public:
  explicit Refusing(driver::Driver& device) : ForwardingDriver(device) {}
  Status copy_out(void* to, Addr from, Bytes size, driver::Stream stream) override {
    if (refuses) return {Code::kDriver, "copy_out: refused"};
    return ForwardingDriver::copy_out(to, from, size, stream);
  }
  Status map(Addr address, Bytes size, driver::Chunk chunk) override {
    if (refuses) return {Code::kDriver, "map: refused"};
    return ForwardingDriver::map(address, size, chunk);
  }
  std::atomic<bool> refuses{false};
};

TEST_CASE("pager: a page that could neither leave nor be mapped again is there for the host") {
  auto device = std::move(driver::open_host_driver({.granularity = kGranule})).value();
  Refusing driver(*device);
  auto pager = std::move(engine::Pager::create(driver, {.budget = 2 * kGranule,
                                                        .chunk_bytes = kGranule,
                                                        .evicted = engine::Evicted::kUnmapped}))
                   .value();
  const auto index = pager->create_range(3 * kGranule, engine::RangeKind::kPaged);
  PENSTOCK_REQUIRE_OK(index.status());
  const engine::Range range = pager->range(index.value());
  const driver::Stream stream = std::move(device->create_stream()).value();
  const auto begin = [&](Bytes page) -> Status {
    PENSTOCK_ASSIGN(const engine::UseId use,
                    pager->define_use({{range.address + page * kGranule, kGranule, page == 0}}));
    PENSTOCK_TRY(pager->begin(use, stream));
    PENSTOCK_TRY(device->fill(range.address + page * kGranule, 7, kGranule, stream));
    return pager->end(use, stream);
  };
  PENSTOCK_REQUIRE_OK(begin(0));
  PENSTOCK_REQUIRE_OK(begin(1));
  driver.refuses = true;
  PENSTOCK_CHECK_CODE(begin(2), Code::kDriver);
  driver.refuses = false;
  PENSTOCK_REQUIRE_OK(pager->flush(range.address, range.bytes));
  CHECK(range.host[0] == std::byte{7});
  PENSTOCK_REQUIRE_OK(begin(2));
  pager.reset();
  PENSTOCK_REQUIRE_OK(device->destroy_stream(stream));
  CHECK(device->live() == driver::LiveCounts{});
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("pager: a chunk that the driver maps no more gives up the addresses of evicted pages") {
  for (const int most : {1, 2, 3}) {
    CAPTURE(most);
    PagedProgram program(
        {.budget = 9 * kGranule, .seed = 3, .max_delay_us = 100, .most_mappings = most});
    PENSTOCK_REQUIRE_OK(program.open());
    for (int round = 0; round < 6; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
    CHECK(settled_wrong(program) == 0);
    CHECK(program.pager().stats().counters.unmap_calls > 0);
  }
}

TEST_CASE("pager: strict safety unmaps, so that a stray access is fatal") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    PagedProgram program({.budget = 9 * kGranule, .evicted = engine::Evicted::kUnmapped});
    if (!program.open().ok() || !program.sweep().ok()) _exit(3);
    (void)program.device().synchronize(program.stream());
    (void)program.layer(11);  // looks after what was evicted before
    (void)program.device().synchronize(program.stream());
    volatile const auto* stray = reinterpret_cast<const std::uint32_t*>(program.range().address);
    (void)*stray;
    _exit(4);
  }
  int result = 0;
  REQUIRE(waitpid(child, &result, 0) == child);
  const bool fatal = (WIFSIGNALED(result) && WTERMSIG(result) == SIGSEGV) ||
                     (WIFEXITED(result) && WEXITSTATUS(result) == 1);  // ASan reports, then exits 1
  CHECK(fatal);
}
#endif

}  // namespace
}  // namespace penstock::testing
