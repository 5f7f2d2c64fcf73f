// SPDX-License-Identifier: Apache-2.0
#include "doctest/doctest.h"
#include "process/launch_costs.hpp"

namespace penstock::testing {
namespace {

using engine::LaunchCosts;

TEST_CASE("launch costs: percentiles are at most an eighth too high") {
  LaunchCosts none;
  CHECK(none.us(0.5) == 0);
  for (const std::int64_t ns : {1L, 7L, 8L, 300L, 4095L, 4096L, 1'000'000L, 7'300'000'000L}) {
    LaunchCosts costs;
    costs.add(ns);
    INFO("ns " << ns);
    CHECK(costs.us(0.5) * 1e3 >= double(ns));
    CHECK(costs.us(0.5) * 1e3 <= double(ns) * 1.125 + 1);
    CHECK(costs.us(0.99) == costs.us(0.5));
  }
}

TEST_CASE("launch costs: the rare long ones show in the last percentile only, of all devices") {
  LaunchCosts costs;
  LaunchCosts other;
  for (int i = 0; i < 985; ++i) costs.add(400 + i % 10);
  for (int i = 0; i < 15; ++i) other.add(12'000);
  CHECK(other.us(0.5) >= 12);
  costs.add(other);
  CHECK(costs.us(0.5) >= 0.4);
  CHECK(costs.us(0.5) <= 0.46);
  CHECK(costs.us(0.98) <= 0.46);
  CHECK(costs.us(0.99) >= 12);
  CHECK(costs.us(0.99) <= 13.5);
}

TEST_CASE("launch costs: a piece counts from its scope's begin to its end, less what it waits") {
  using Clock = std::chrono::steady_clock;
  LaunchCosts costs;
  const auto began = Clock::now();
  {
    const engine::LaunchTimed timed(&costs);
    const auto end = Clock::now() + std::chrono::milliseconds(5);
    while (Clock::now() < end) continue;
    engine::Mapper::waited() += std::chrono::milliseconds(4);
  }
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
  CHECK(costs.us(1) >= 1'000 * 0.99);
  CHECK(costs.us(1) <= (us - 4'000) * 1.125 + 1);
  { const engine::LaunchTimed unasked(nullptr); }
}

}  // namespace
}  // namespace penstock::testing
