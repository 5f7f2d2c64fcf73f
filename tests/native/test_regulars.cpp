// SPDX-License-Identifier: Apache-2.0
// Iterations some of whose uses come and go: experts that a router chooses.
#include <random>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "paged_program.hpp"
#include "policy/learning/regulars.hpp"

namespace penstock::testing {
namespace {

using policy::learning::Regulars;
using Order = std::vector<Regulars::Use>;

TEST_CASE("regulars: what was absent is left out, and for longer each time") {
  Regulars regulars;
  regulars.over({1, 2, 3, 2});
  CHECK(regulars.of({1, 2, 3, 2}) == Order{1, 2, 3, 2});
  CHECK(regulars.of({1, 9}) == Order{1, 9});  // what is new is taken to stay
  for (const int wanted : {1, 8, 64, 64}) {
    CAPTURE(wanted);
    regulars.over({1, 2});
    for (int i = 0; i < wanted - 1; ++i) regulars.over({1, 2, 3});
    CHECK_FALSE((wanted > 1 && regulars.has(3)));
    if (wanted > 1) {
      regulars.over({1, 2});  // not in a row
      for (int i = 0; i < wanted - 1; ++i) regulars.over({1, 2, 3});
      CHECK(regulars.of({1, 2, 3}) == Order{1, 2});
    }
    regulars.over({1, 2, 3});
    CHECK(regulars.of({1, 2, 3}) == Order{1, 2, 3});
  }
}

TEST_CASE("regulars: another program is learned anew") {
  Regulars regulars;
  regulars.over({1, 2, 3, 4});
  regulars.over({4, 5, 6, 7});
  CHECK(regulars.of({4, 5, 6, 7}) == Order{4, 5, 6, 7});
  regulars.over({1, 2, 3, 4});
  CHECK(regulars.of({1, 2, 3, 4}) == Order{1, 2, 3, 4});
}

// Layers 0 to 7 in each sweep, and behind each of them one of the others, chosen by chance.
TEST_CASE("pager: the plan is of what every sweep has, and holds while the rest is drawn") {
  for (const bool writes : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(writes);
      CAPTURE(seed);
      PagedProgram program({.layers = 32,
                            .budget = (seed % 2 == 0 ? 24 : 48) * kGranule,
                            .writes = writes,
                            .seed = seed,
                            .max_delay_us = 50});
      PENSTOCK_REQUIRE_OK(program.open());
      std::mt19937_64 random(seed);
      const auto sweep = [&] {
        std::vector<int> order;
        for (int layer = 0; layer < 8; ++layer) {
          order.push_back(layer);
          order.push_back(8 + static_cast<int>(random() % 24));
        }
        PENSTOCK_REQUIRE_OK(program.sweep(order));
      };
      for (int round = 0; round < 40; ++round) sweep();
      const auto before = program.pager().stats();
      for (int round = 0; round < 10; ++round) sweep();
      const auto after = program.pager().stats();
      CHECK(after.counters.mismatches == before.counters.mismatches);
      CHECK(after.counters.plans <= before.counters.plans + 1);
      CHECK(after.kept_pages > 0);
      CHECK(after.peak_device_bytes <= (seed % 2 == 0 ? 24 : 48) * kGranule);
      auto wrong = program.wrong_on_host();
      PENSTOCK_REQUIRE_OK(wrong.status());
      CHECK(wrong.value() == 0);
      CHECK(program.wrong() == 0);
      if (seed % 2 == 0) continue;
      // All that every sweep has fits: it never comes again, and only what is drawn does.
      CHECK(after.planned_bytes_in == 0);
      const Bytes moved = after.counters.bytes_in - before.counters.bytes_in;
      CHECK(moved <= 10 * 8 * Bytes{5} * kGranule);
    }
  }
}

TEST_CASE("pager: a sweep that is broken off leaves the plan as it was") {
  PagedProgram program({.layers = 12});
  PENSTOCK_REQUIRE_OK(program.open());
  for (int round = 0; round < 4; ++round) PENSTOCK_REQUIRE_OK(program.sweep());
  const auto before = program.pager().stats();
  for (int round = 0; round < 3; ++round) {
    PENSTOCK_REQUIRE_OK(program.sweep({0, 1, 2}));
    PENSTOCK_REQUIRE_OK(program.sweep());
  }
  CHECK(program.pager().stats().counters.mismatches == before.counters.mismatches);
  CHECK(program.pager().stats().planned_bytes_in == before.planned_bytes_in);
}

}  // namespace
}  // namespace penstock::testing
