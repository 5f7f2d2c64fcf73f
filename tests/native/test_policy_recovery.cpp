// SPDX-License-Identifier: Apache-2.0
// What a request tries that finds no memory, and whether a page is expected to be what it was.
#include <vector>

#include "doctest/doctest.h"
#include "policy/packing/recovery.hpp"
#include "policy/residency/stillness.hpp"

namespace penstock::policy {
namespace {

using packing::Recovery;
using packing::Shortage;

std::vector<Recovery> ladder(const Shortage& there) {
  std::vector<Recovery> steps;
  for (Recovery step = Recovery::kStart; step != Recovery::kGiveUp;) {
    step = packing::next_step(step, there);
    steps.push_back(step);
  }
  return steps;
}

TEST_CASE(
    "policy: the ladder of a request goes from what is free of charge to what waits for all") {
  using enum Recovery;
  CHECK(ladder({.apart = true, .shared = true, .freed = true, .awaited = true}) ==
        std::vector{kLetIn, kJoin, kBehind, kAwait, kGiveBack, kGiveUp});
  CHECK(ladder({.shared = true, .freed = true}) == std::vector{kJoin, kBehind, kGiveBack, kGiveUp});
  CHECK(ladder({.awaited = true}) == std::vector{kJoin, kAwait, kGiveBack, kGiveUp});
}

TEST_CASE("policy: a ladder leaves out what cannot help") {
  using enum Recovery;
  CHECK(ladder({}) == std::vector{kJoin, kGiveBack, kGiveUp});
  // What others freed is nothing to a private pool, nor while a stream captures.
  CHECK(ladder({.freed = true}) == std::vector{kJoin, kGiveBack, kGiveUp});
}

TEST_CASE("policy: a page that has left once is expected to be the same") {
  residency::Stillness page;
  CHECK_FALSE(page.likely(0, false));
  for (int i = 0; i < 3; ++i) CHECK(page.likely(0, true));
  CHECK_FALSE(page.likely(0, false));  // its host memory is another one's now
  CHECK(page.likely(0, true));
}

TEST_CASE("policy: a page that was not as expected has to be the same for longer") {
  residency::Stillness page;
  CHECK_FALSE(page.likely(0, false));
  CHECK(page.likely(0, true));
  CHECK_FALSE(page.likely(1, true));
  for (int i = 0; i < 2; ++i) CHECK(page.likely(1, true) == (i == 1));
  CHECK_FALSE(page.likely(2, true));
  for (int i = 0; i < 16; ++i) CHECK(page.likely(2, true) == (i == 15));
  CHECK_FALSE(page.likely(3, true));
  for (int i = 0; i < 128; ++i) CHECK(page.likely(3, true) == (i == 127));
}

TEST_CASE("policy: a weight that is updated once a step is hardly ever expected to be the same") {
  residency::Stillness page;
  std::uint32_t changes = 0;
  int mistakes = 0;
  for (int leaves = 0; leaves < 3000; ++leaves) {
    const bool likely = page.likely(changes, leaves > 0);
    const bool changed = leaves % 3 == 2;  // after forward, after backward, after its update
    mistakes += likely && changed;
    changes += changed;
  }
  CHECK(mistakes <= 2);
}

}  // namespace
}  // namespace penstock::policy
