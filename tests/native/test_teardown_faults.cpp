// SPDX-License-Identifier: Apache-2.0
// Calls that tear down, wait and ask, which the emulated GPU never fails of itself: each of those
// that an engine makes fails once, or from there on for good.  No word is wrong and nothing
// crashes; after one failure no more is left than the call itself would have taken away.
#include <atomic>

#include "engine_scenarios.hpp"

namespace penstock::testing {
namespace {

using scenarios::Evicted;

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
  for (int kind = 0; kind < kCalls; ++kind) {
    CAPTURE(kind);
    const auto call = static_cast<Call>(kind);
    const std::int64_t calls = fail(scenario, call, 0, false);
    CHECK(scenarios::left.ranges == 0);
    for (std::int64_t nth = 1; nth <= calls; nth += 1 + nth / 10) {
      CAPTURE(nth);
      fail(scenario, call, nth, false);
      const driver::LiveCounts& left = scenarios::left;
      CHECK(left.ranges <= 1);
      CHECK(left.chunks <= 1);
      CHECK(left.host_allocations <= 1);
      CHECK(left.managed_allocations <= 1);
      CHECK(left.streams <= 1);
      CHECK(left.events <= 1);
      if (left.ranges == 0) CHECK(left.mappings == 0);
    }
    for (std::int64_t nth = 1; nth <= calls; nth += 1 + nth / 2) {
      CAPTURE(nth);
      fail(scenario, call, nth, true);
    }
  }
}

TEST_CASE("faults of tearing down: a pager whose uses are declared") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each([&] { return scenarios::page(evicted); });
  }
}

TEST_CASE("faults of tearing down: a budget that a pager shares with others") {
  fail_each(scenarios::share);
}

TEST_CASE("faults of tearing down: a program whose work is announced") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each([&] { return scenarios::announce(evicted); });
  }
}

TEST_CASE("faults of tearing down: an allocator") { fail_each(scenarios::allocate); }

TEST_CASE("faults of tearing down: a managed set") { fail_each(scenarios::manage); }

}  // namespace
}  // namespace penstock::testing
