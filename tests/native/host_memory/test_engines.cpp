// SPDX-License-Identifier: Apache-2.0
// Each engine without host memory at any one of its allocations: the call says so, what was there
// is right, the next calls work, and in the end nothing is left.
#include "host_memory/failing.hpp"
#include "packed_scenario.hpp"

namespace penstock::testing {
namespace {

using scenarios::Evicted;

TEST_CASE("host memory: a pager whose uses are declared") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each_allocation([&] { return scenarios::page(evicted); });
  }
}

TEST_CASE("host memory: a budget that a pager shares with others") {
  fail_each_allocation(scenarios::share);
}

TEST_CASE("host memory: a program whose work is announced") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    CAPTURE(static_cast<int>(evicted));
    fail_each_allocation([&] { return scenarios::announce(evicted); });
  }
}

TEST_CASE("host memory: an allocator") { fail_each_allocation(scenarios::allocate, 4); }

TEST_CASE("host memory: pages that travel encoded") { fail_each_allocation(scenarios::pack, 4); }

TEST_CASE("host memory: a managed set") { fail_each_allocation(scenarios::manage); }

}  // namespace
}  // namespace penstock::testing
