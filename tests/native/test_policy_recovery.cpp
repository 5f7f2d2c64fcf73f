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

TEST_CASE("policy: a page that was the same twice is expected to be so again") {
  residency::Stillness page;
  CHECK_FALSE(page.likely(0, false));
  CHECK_FALSE(page.likely(1, true));  // its first copy
  CHECK_FALSE(page.likely(1, true));
  CHECK(page.likely(1, true));
  CHECK(page.likely(1, true));
  CHECK_FALSE(page.likely(2, true));
  CHECK_FALSE(page.likely(2, true));
  CHECK(page.likely(2, true));
  CHECK_FALSE(page.likely(2, false));  // its host memory is another one's now
}

}  // namespace
}  // namespace penstock::policy
