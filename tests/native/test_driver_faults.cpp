// SPDX-License-Identifier: Apache-2.0
// Each call that an engine makes of its driver fails once, or from there on for good: those that
// make and move, and those that tear down, wait and ask, which the emulated GPU never fails of
// itself.  No word is wrong and nothing crashes; after one failure no more is left than the call
// itself would have taken away.  PENSTOCK_EVERY_CALL: no call is left out.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "engine_scenarios.hpp"
#include "fault_tally.hpp"
#include "packed_scenario.hpp"

namespace penstock::testing {
namespace {

using scenarios::Evicted;
using scenarios::Machine;

// The scenario with the nth call of a kind failing; how many there were.
template <class Scenario>
std::int64_t fail(Scenario&& scenario, Call kind, std::int64_t nth, bool for_good) {
  std::atomic<std::int64_t> calls{0};
  scenarios::watch = [&](Call call) -> Status {
    if (call != kind) return {};
    const std::int64_t now = ++calls;
    const bool fails = nth > 0 && (for_good ? now >= nth : now == nth);
    return fails ? Status(Code::kDriver, "injected") : Status{};
  };
  (void)scenario();
  scenarios::watch = {};
  return calls;
}

template <class Scenario>
void fail_each(Scenario&& scenario) {
  const bool every = std::getenv("PENSTOCK_EVERY_CALL") != nullptr;
  const auto after = [every](std::int64_t nth, std::int64_t part) {
    return nth + (every ? 1 : 1 + nth / part);
  };
  std::int64_t once = 0;
  std::int64_t for_good = 0;
  for (int kind = 0; kind <= kCalls; ++kind) {
    CAPTURE(kind);
    const auto call = static_cast<Call>(kind);
    const std::int64_t calls = fail(scenario, call, 0, false);
    CHECK(scenarios::left.ranges == 0);
    for (std::int64_t nth = 1; nth <= calls; nth = after(nth, call == Call::kOther ? 4 : 10)) {
      CAPTURE(nth);
      fail(scenario, call, nth, false);
      ++once;
      const driver::LiveCounts& left = scenarios::left;
      CHECK(left.ranges <= 1);
      CHECK(left.chunks <= 1);
      CHECK(left.host_allocations <= 1);
      CHECK(left.managed_allocations <= 1);
      CHECK(left.streams <= 1);
      CHECK(left.events <= 1);
      if (left.ranges == 0) CHECK(left.mappings == 0);
    }
    for (std::int64_t nth = 1; nth <= calls; nth = after(nth, 2)) {
      CAPTURE(nth);
      fail(scenario, call, nth, true);
      ++for_good;
    }
  }
  tell_faults("calls, once", once);
  tell_faults("calls, for good", for_good);
}

TEST_CASE("driver faults: a pager whose uses are declared") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each([&] { return scenarios::page(evicted); });
  }
}

TEST_CASE("driver faults: a budget that a pager shares with others") {
  fail_each(scenarios::share);
}

TEST_CASE("driver faults: a program whose work is announced") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each([&] { return scenarios::announce(evicted); });
  }
}

// A kernel that takes its time.
void give_slow_work(Machine& machine, std::atomic<bool>& over) {
  CHECK(machine.host
            ->launch(machine.stream,
                     [&over] {
                       std::this_thread::sleep_for(std::chrono::milliseconds(50));
                       over = true;
                     })
            .ok());
}
Status no_event_tells(Call call) {
  return call == Call::kSynchronizeEvent ? Status(Code::kDriver, "injected") : Status{};
}

TEST_CASE("driver faults: a pager outlives work whose end no event tells") {
  std::atomic<bool> over{false};
  scenarios::watch = no_event_tells;
  Machine machine;
  scenarios::watch = {};
  auto pager = engine::Pager::create(*machine.device, scenarios::pager_options(Evicted::kMapped));
  REQUIRE(pager.ok());
  const auto range = pager.value()->create_range(scenarios::kGranule, engine::RangeKind::kPaged);
  REQUIRE(range.ok());
  const Addr address = pager.value()->range(range.value()).address;
  const auto use = pager.value()->define_use({{address, scenarios::kGranule, true}});
  REQUIRE(use.ok());
  CHECK(pager.value()->begin(use.value(), machine.stream).ok());
  give_slow_work(machine, over);
  CHECK(pager.value()->end(use.value(), machine.stream).ok());
  pager.value().reset();
  CHECK(over);
}

TEST_CASE("driver faults: a managed set outlives work whose end no event tells") {
  std::atomic<bool> over{false};
  scenarios::watch = no_event_tells;
  Machine machine;
  scenarios::watch = {};
  auto set = engine::ManagedSet::create(
      *machine.device, {.budget = 2 * scenarios::kGranule, .mover = {}}, {{scenarios::kGranule}});
  REQUIRE(set.ok());
  CHECK(set.value()->begin(0, machine.stream).ok());
  give_slow_work(machine, over);
  CHECK(set.value()->end(0, machine.stream).ok());
  set.value().reset();
  CHECK(over);
}

TEST_CASE("driver faults: an allocator") { fail_each(scenarios::allocate); }

TEST_CASE("driver faults: pages that travel encoded") { fail_each(scenarios::pack); }

TEST_CASE("driver faults: a managed set") { fail_each(scenarios::manage); }

}  // namespace
}  // namespace penstock::testing
