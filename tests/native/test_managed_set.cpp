// SPDX-License-Identifier: Apache-2.0
// A managed set on the emulated GPU: residency at every use, the budget, the traffic, the order.
#include <chrono>
#include <future>
#include <thread>

#include "managed_bench.hpp"

namespace penstock::engine::managed_test {

namespace {

const std::vector<GroupSpec> kModel = {{9 * kGrain}, {8 * kGrain}, {8 * kGrain}, {8 * kGrain},
                                       {8 * kGrain}, {8 * kGrain}, {8 * kGrain}, {8 * kGrain},
                                       {1},          {7 * kGrain}};

std::vector<GroupSpec> equal(std::size_t groups) { return {groups, {8 * kGrain}}; }

Bytes rounded(const std::vector<GroupSpec>& groups) {
  Bytes total = 0;
  for (const GroupSpec& group : groups) total += align_up(group.bytes, kGrain);
  return total;
}

// As many passes as it takes to be in the steady state, then one whose figures count.
ManagedSetStats steady(SetBench& bench, HostDriver& host, int passes = 3) {
  for (int pass = 0; pass < passes; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  PENSTOCK_REQUIRE_OK(host.synchronize(bench.compute));
  PENSTOCK_REQUIRE_OK(bench.set->iteration());
  return bench.set->stats();
}

template <class Condition>
bool soon(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

TEST_CASE("managed set: resident at every use, within the budget, whatever is asked for") {
  int cases = 0;
  for (const Bytes budget : {17, 20, 27, 41, 60, 73}) {
    for (const std::int32_t look_ahead : {0, 1, 2, 5}) {
      for (const Eviction eviction : {Eviction::kCollapse, Eviction::kPrefetchToHost}) {
        CAPTURE(budget);
        CAPTURE(look_ahead);
        auto host = open({.seed = static_cast<std::uint64_t>(++cases), .max_delay_us = 150});
        ManagedSetOptions chosen = options(budget * kGrain, look_ahead);
        chosen.mover.streams = cases % 4;
        chosen.mover.eviction = eviction;
        chosen.mover.read_mostly = eviction == Eviction::kCollapse || cases % 3 == 0;
        chosen.mover.max_in_flight = cases % 2 == 0 ? 8 * kGrain : 0;
        chosen.profile_every = 2;
        SetBench bench(*host, kModel, chosen);
        const ManagedSetStats stats = steady(bench, *host);
        bench.check_findings();
        CHECK(stats.mismatches == 0);
        CHECK(stats.moved.peak <= budget * kGrain);
        CHECK(soon([&] {  // once the last prefetches have arrived
          const MoverCounters moved = bench.set->stats().moved;
          const driver::ManagedCounters real = host->managed_counters();
          return moved.bytes_in == real.bytes_in && moved.bytes_out == real.bytes_out &&
                 moved.resident == real.resident;
        }));
        if (chosen.mover.read_mostly) CHECK(stats.moved.bytes_out == 0);
        if (look_ahead > 0) CHECK(stats.look_ahead > 0);
        if (stats.look_ahead > 0) CHECK(stats.iteration_hits == stats.iteration_uses);
      }
    }
  }
}

TEST_CASE("managed set: a steady pass moves what the plan says, and all of it ahead of its use") {
  for (const Bytes budget : {20, 41, 60}) {
    auto host = open();
    SetBench bench(*host, kModel, options(budget * kGrain, 1));
    const ManagedSetStats stats = steady(bench, *host, 6);
    CHECK(stats.planned_bytes_in > 0);
    CHECK(stats.planned_bytes_in < rounded(kModel));
    // The jobs of a pass's end are for the next pass, and may be issued on either side.
    const auto moved = static_cast<double>(stats.moved.bytes_in);
    const auto planned = static_cast<double>(stats.planned_bytes_in);
    CHECK(moved <= static_cast<double>(rounded(kModel)) + 5.6 * planned);
    CHECK(moved >= 5 * planned);
    CHECK(stats.moved.prefetches <= 7 * kModel.size());  // one call a group and pass
    bench.check_findings();
    // What is to stay has stayed, of every group.
    policy::Sequence sequence;
    for (GroupId id = 0; id < bench.count(); ++id) {
      sequence.page_bytes.push_back(bench.set->group(id).value().bytes);
      sequence.steps.push_back({{id}});
    }
    const auto prefixes = policy::keep_prefixes(sequence, {budget * kGrain, kGrain, 1});
    for (GroupId id = 0; id < bench.count(); ++id) {
      const Span span = bench.set->group(id).value();
      CHECK(host->managed_resident(span.address, span.bytes) >=
            prefixes.value().kept[static_cast<std::size_t>(id)]);
    }
  }
}

TEST_CASE("managed set: what fits is brought in once and stays") {
  auto host = open();
  SetBench bench(*host, kModel, options(rounded(kModel)));
  const ManagedSetStats stats = steady(bench, *host);
  bench.check_findings();
  CHECK(stats.moved.bytes_in == rounded(kModel));
  CHECK(stats.moved.resident == rounded(kModel));
  CHECK(stats.moved.evictions == 0);
  CHECK(stats.kept_groups == kModel.size());
  CHECK(stats.iteration_bytes_in == 0);
}

TEST_CASE("managed set: the order is learned, and learned anew when it changes") {
  auto host = open({.seed = 3, .max_delay_us = 100});
  SetBench bench(*host, kModel, options(30 * kGrain));
  const std::vector<GroupId> backwards = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  const std::vector<GroupId> twice = {0, 3, 4, 3, 5, 0};
  for (const auto& order : {backwards, twice}) {
    const std::uint64_t plans = bench.set->stats().plans;
    PENSTOCK_REQUIRE_OK(bench.pass(order));
    PENSTOCK_REQUIRE_OK(bench.pass(order));
    const std::uint64_t mismatches = bench.set->stats().mismatches;
    CHECK(mismatches > 0);
    CHECK(bench.set->stats().plans == plans + 1);
    PENSTOCK_REQUIRE_OK(bench.pass(order));
    PENSTOCK_REQUIRE_OK(bench.pass(order));
    CHECK(bench.set->stats().mismatches == mismatches);
    CHECK(bench.set->stats().plans == plans + 1);
    CHECK(bench.set->stats().iteration_hits == order.size());
  }
  // A pass that is broken off is no new order.
  const std::uint64_t plans = bench.set->stats().plans;
  PENSTOCK_REQUIRE_OK(bench.pass({0, 3}));
  PENSTOCK_REQUIRE_OK(bench.pass(twice));
  CHECK(bench.set->stats().plans == plans);
  bench.check_findings();
}

TEST_CASE("managed set: uses nest, and together must fit") {
  auto host = open({.seed = 5, .max_delay_us = 100});
  SetBench bench(*host, kModel, options(30 * kGrain));
  for (int pass = 0; pass < 4; ++pass) {
    PENSTOCK_REQUIRE_OK(bench.set->iteration());
    PENSTOCK_REQUIRE_OK(bench.set->begin(0, bench.compute));
    for (GroupId id = 1; id < bench.count(); ++id) {
      PENSTOCK_REQUIRE_OK(bench.use(id, bench.compute));
      PENSTOCK_REQUIRE_OK(bench.launch(0, bench.compute));
    }
    PENSTOCK_REQUIRE_OK(bench.set->end(0, bench.compute));
  }
  CHECK(bench.set->stats().iteration_hits == bench.set->stats().iteration_uses);
  CHECK(bench.set->smallest() == 17 * kGrain);
  for (const GroupId id : {0, 1, 2}) PENSTOCK_REQUIRE_OK(bench.set->begin(id, bench.compute));
  PENSTOCK_CHECK_CODE(bench.set->begin(3, bench.compute), Code::kOutOfMemory);
  PENSTOCK_CHECK_CODE(bench.set->end(3, bench.compute), Code::kInvalidArgument);
  for (const GroupId id : {2, 1, 0}) PENSTOCK_REQUIRE_OK(bench.set->end(id, bench.compute));
  PENSTOCK_CHECK_OK(bench.use(3, bench.compute));
  bench.check_findings();
}

TEST_CASE("managed set: looking ahead never sends out what is needed sooner") {
  auto host = open();
  SetBench bench(*host, equal(6), options(24 * kGrain, 2));
  for (int pass = 0; pass < 3; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  PENSTOCK_REQUIRE_OK(bench.set->iteration());
  // Two of three places are taken by uses that run on; the third is for group 4, not for group 5.
  PENSTOCK_REQUIRE_OK(bench.set->begin(0, bench.compute));
  PENSTOCK_REQUIRE_OK(bench.set->begin(3, bench.compute));
  const std::uint64_t hits = bench.set->stats().hits;
  PENSTOCK_REQUIRE_OK(bench.set->begin(4, bench.compute));
  CHECK(bench.set->stats().hits == hits + 1);
  for (const GroupId id : {4, 3, 0}) PENSTOCK_REQUIRE_OK(bench.set->end(id, bench.compute));
  PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  bench.check_findings();
}

TEST_CASE("managed set: uses on several streams hold a group until the last of them is over") {
  auto host = open({.seed = 11, .max_delay_us = 300});
  SetBench bench(*host, kModel, options(20 * kGrain, 1));
  const Stream other = bench.new_stream();
  for (int pass = 0; pass < 5; ++pass) {
    PENSTOCK_REQUIRE_OK(bench.set->iteration());
    for (GroupId id = 0; id < bench.count(); ++id) {
      PENSTOCK_REQUIRE_OK(bench.use(id, id % 2 == 0 ? bench.compute : other));
      if (id % 3 == 0) PENSTOCK_REQUIRE_OK(bench.use(id, id % 2 == 0 ? other : bench.compute));
      if (id % 3 == 1) {  // ends on another stream than it began on
        PENSTOCK_REQUIRE_OK(bench.set->begin(id, bench.compute));
        PENSTOCK_REQUIRE_OK(bench.launch(id, bench.compute));
        PENSTOCK_REQUIRE_OK(bench.set->end(id, other));
      }
    }
  }
  PENSTOCK_CHECK_OK(host->synchronize(other));
  bench.check_findings();
}

TEST_CASE("managed set: the launching thread does not wait for what leaves or arrives") {
  auto host = open();
  Gate gate(false);
  ManagedSetOptions chosen = options(3 * 8 * kGrain, 1);
  SetBench bench(*host, equal(6), chosen);
  PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  PENSTOCK_REQUIRE_OK(host->synchronize(bench.compute));
  PENSTOCK_REQUIRE_OK(bench.set->iteration());
  // Group 0 is on its way or there; the kernel that reads it does not end.
  auto launching = std::async(std::launch::async, [&]() -> Status {
    PENSTOCK_TRY(bench.set->begin(0, bench.compute));
    PENSTOCK_TRY(host->launch(bench.compute, [&] { gate.pass(); }));
    PENSTOCK_TRY(bench.set->end(0, bench.compute));
    return bench.use(1, bench.compute);
  });
  CHECK(launching.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  gate.open();
  PENSTOCK_CHECK_OK(launching.get());
  PENSTOCK_CHECK_OK(bench.pass(bench.in_order()));
  bench.check_findings();
}

TEST_CASE("managed set: prefetches in flight keep to their bound") {
  for (const Bytes bound : {Bytes{0}, 16 * kGrain, 4 * kGrain}) {
    CAPTURE(bound);
    auto host = open();
    Gate gate(false);
    HeldBack held(*host, gate);
    ManagedSetOptions chosen = options(48 * kGrain, 4);
    chosen.mover.max_in_flight = bound;
    chosen.mover.streams = 5;
    auto made = ManagedSet::create(held, chosen, equal(6));
    PENSTOCK_REQUIRE_OK(made.status());
    PENSTOCK_REQUIRE_OK(made.value()->iteration());  // four groups are wanted at once
    const Bytes expected = bound == 0 ? 32 * kGrain : std::max(bound, 8 * kGrain);
    CHECK(soon([&] { return held.in_flight() == expected; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(held.most_in_flight() == expected);
    gate.open();
    CHECK(soon([&] { return made.value()->stats().moved.bytes_in == 32 * kGrain; }));
    CHECK(held.most_in_flight() == expected);
  }
}

TEST_CASE("managed set: a smaller budget takes effect at once, a larger one is made use of") {
  auto host = open({.seed = 2, .max_delay_us = 50});
  SetBench bench(*host, kModel, options(60 * kGrain));
  for (int pass = 0; pass < 3; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  PENSTOCK_REQUIRE_OK(host->synchronize(bench.compute));
  PENSTOCK_REQUIRE_OK(bench.set->resize(20 * kGrain));
  CHECK(host->managed_counters().resident <= 20 * kGrain);
  bench.set_budget(20 * kGrain);
  for (int pass = 0; pass < 3; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  bench.check_findings();
  const Bytes tight = bench.set->stats().iteration_bytes_in;
  PENSTOCK_CHECK_CODE(bench.set->resize(16 * kGrain), Code::kOutOfMemory);
  PENSTOCK_CHECK_CODE(bench.set->resize(9 * kGiB), Code::kOutOfMemory);  // of a card with 8
  CHECK(bench.set->stats().budget == 20 * kGrain);
  bench.set_budget(70 * kGrain);
  PENSTOCK_REQUIRE_OK(bench.set->resize(70 * kGrain));
  for (int pass = 0; pass < 4; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  bench.check_findings();
  CHECK(bench.set->stats().iteration_bytes_in < tight / 2);
}

TEST_CASE("managed set: refusals name numbers and leave nothing behind") {
  auto host = open({.capacity = 64 * kGrain});
  const auto refused = [&](const ManagedSetOptions& chosen, const std::vector<GroupSpec>& groups,
                           Code code) {
    PENSTOCK_CHECK_CODE(ManagedSet::create(*host, chosen, groups).status(), code);
    CHECK(host->live() == driver::LiveCounts{});
  };
  const std::vector<GroupSpec> fits = equal(4);
  refused(options(15 * kGrain), fits, Code::kOutOfMemory);  // below the two largest
  refused(options(65 * kGrain), fits, Code::kOutOfMemory);  // beyond the card
  refused(options(20 * kGrain), equal(9), Code::kOutOfMemory);
  refused(options(20 * kGrain), {{8 * kGrain}, {0}}, Code::kInvalidArgument);
  refused(options(20 * kGrain, -1), fits, Code::kInvalidArgument);
  ManagedSetOptions chosen = options(20 * kGrain);
  chosen.mover.read_mostly = false;
  refused(chosen, fits, Code::kInvalidArgument);
  chosen = options(20 * kGrain);
  chosen.mover.streams = -1;
  refused(chosen, fits, Code::kInvalidArgument);
  chosen = options(65 * kGrain);
  chosen.on_demand = true;
  refused(chosen, equal(9), Code::kOutOfMemory);

  chosen = options(20 * kGrain);
  chosen.allow_oversubscription = true;
  SetBench bench(*host, equal(9), chosen);
  for (int pass = 0; pass < 3; ++pass) PENSTOCK_REQUIRE_OK(bench.pass(bench.in_order()));
  bench.check_findings();
  PENSTOCK_CHECK_CODE(bench.set->begin(9, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(bench.set->begin(-1, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(bench.set->end(0, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(bench.set->group(9).status(), Code::kInvalidArgument);
}

TEST_CASE("managed set: a group that stays on the host takes no part in anything") {
  auto host = open({.capacity = 64 * kGrain});
  std::vector<GroupSpec> groups = equal(6);
  groups[2] = {100 * kGrain, true};  // more than the card has
  SetBench bench(*host, groups, options(20 * kGrain));
  for (int pass = 0; pass < 4; ++pass) PENSTOCK_REQUIRE_OK(bench.pass({0, 1, 3, 4, 5}));
  bench.check_findings();
  const ManagedSetStats stats = bench.set->stats();
  CHECK(stats.mismatches == 0);
  CHECK(stats.total == 40 * kGrain);
  CHECK(stats.host_only == 100 * kGrain);
  CHECK(stats.moved.peak <= 20 * kGrain);
  CHECK(bench.set->smallest() == 16 * kGrain);
  const Span span = bench.set->group(2).value();
  CHECK(host->managed_resident(span.address, span.bytes) == 0);
  PENSTOCK_CHECK_CODE(bench.set->begin(2, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(bench.set->end(2, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_OK(bench.set->resize(40 * kGrain));
  for (int pass = 0; pass < 2; ++pass) PENSTOCK_REQUIRE_OK(bench.pass({0, 1, 3, 4, 5}));
  CHECK(bench.set->stats().kept_groups == 5);
}

TEST_CASE("managed set: on demand it allocates, advises and keeps out of the way") {
  auto host = open({.capacity = 64 * kGrain});
  ManagedSetOptions chosen = options(kGrain);
  chosen.on_demand = true;
  SetBench bench(*host, equal(4), chosen);
  CHECK(host->live().managed_allocations == 4);
  CHECK(host->live().events == 0);
  PENSTOCK_CHECK_CODE(bench.set->begin(0, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(bench.set->end(0, bench.compute), Code::kInvalidArgument);
  PENSTOCK_CHECK_OK(bench.set->iteration());
  PENSTOCK_CHECK_OK(bench.set->resize(2 * kGrain));
  CHECK(bench.set->smallest() == 0);
  CHECK(bench.set->stats().moved.bytes_in == 0);
  CHECK(host->managed_counters().bytes_in == 0);
}

}  // namespace penstock::engine::managed_test
