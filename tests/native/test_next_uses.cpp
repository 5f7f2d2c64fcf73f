// SPDX-License-Identifier: Apache-2.0
// Next uses of pages, foreseen from what followed before, and which idle page is needed last.
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "policy/learning/next_uses.hpp"
#include "policy/residency/idle_pages.hpp"

namespace penstock::testing {
namespace {

using policy::PageId;
using policy::learning::NextUses;
using policy::residency::IdlePages;

void sweep(NextUses& uses, PageId first, PageId end) {
  for (PageId page = first; page < end; ++page) uses.use(page, 4);
}

TEST_CASE("next uses: one round of a loop tells the next") {
  NextUses uses;
  sweep(uses, 0, 100);
  CHECK(!uses.sure());
  CHECK(uses.next(50) == NextUses::kNone);
  sweep(uses, 0, 20);
  CHECK(uses.sure());
  CHECK(uses.place() == 20);
  for (PageId page = 20; page < 100; ++page) CHECK(uses.next(page) - uses.place() == page - 20);
  for (PageId page = 0; page < 20; ++page) CHECK(uses.next(page) - uses.place() == 80 + page);
}

TEST_CASE("next uses: a part that is left out, or new, costs a few uses") {
  NextUses uses;
  for (int i = 0; i < 3; ++i) sweep(uses, 0, 100);
  SUBCASE("left out") {
    sweep(uses, 0, 40);
    sweep(uses, 50, 60);
  }
  SUBCASE("new") {
    sweep(uses, 0, 50);
    sweep(uses, 200, 203);
    sweep(uses, 50, 60);
  }
  CHECK(uses.sure());
  CHECK(uses.page_at(uses.place()) == 60);
}

TEST_CASE("next uses: the longest context tells one phase from another") {
  // The same ten pages come before other ones.
  NextUses uses;
  const auto phase = [&](PageId own) {
    sweep(uses, own, own + 40);
    sweep(uses, 0, 10);
    sweep(uses, own + 40, own + 80);
  };
  for (const PageId own : {100, 200, 100, 100, 200, 200}) phase(own);
  for (const PageId own : {100, 200}) {
    CAPTURE(own);
    sweep(uses, own, own + 40);
    sweep(uses, 0, 10);
    CHECK(uses.sure());
    CHECK(uses.page_at(uses.place()) == own + 40);
    sweep(uses, own + 40, own + 80);
  }
}

TEST_CASE("next uses: pages that come anywhere do not hide the order of others") {
  std::mt19937_64 random(7);
  NextUses uses;
  int wrong = 0;
  for (int round = 0; round < 12; ++round) {
    for (PageId page = 0; page < 200; ++page) {
      if (random() % 2 == 0) uses.use(1000 + static_cast<PageId>(random() % 60), 4);
      uses.use(page, 4);
      if (round < 6) continue;
      const auto next = uses.next((page + 20) % 200);
      wrong += !uses.sure() || next == NextUses::kNone || next - uses.place() > 40;
    }
  }
  CHECK(wrong < 6 * 200 / 4);
}

TEST_CASE("next uses: nothing is sure where chance decides") {
  std::mt19937_64 random(3);
  NextUses uses;
  int sure = 0;
  for (int i = 0; i < 20000; ++i) {
    uses.use(static_cast<PageId>(random() % 300), 8);
    sure += uses.sure();
  }
  CHECK(sure < 200);
}

TEST_CASE("next uses: what is touched again and again is one use, which lasts") {
  NextUses uses;
  for (int round = 0; round < 3; ++round) {
    for (PageId page = 0; page < 100; ++page) {
      uses.use(page, 4);
      if (page >= 20 && page < 60) uses.use(500, 4);
    }
  }
  sweep(uses, 0, 20);
  uses.use(20, 4);
  uses.use(500, 4);
  for (PageId page = 21; page < 40; ++page) uses.use(page, 4);
  // Needed until the sixtieth page of the round, whether or not it has been touched since.
  CHECK(uses.next(500) - uses.place() <= 21);
}

TEST_CASE("idle pages: the one that is needed last goes, the dead before it") {
  NextUses uses;
  sweep(uses, 0, 64);
  sweep(uses, 0, 32);
  IdlePages idle(uses);
  for (PageId page = 33; page < 64; ++page) idle.add(page, false);
  const auto last = idle.needed_last();
  REQUIRE(last);
  CHECK(last->distance >= 16);  // of the further half
  CHECK(uses.next(last->page) - uses.place() == last->distance);
  idle.add(34, true);
  CHECK(idle.needed_last()->page == 34);
  CHECK(idle.needed_last()->distance == IdlePages::kNever);
  idle.remove(34);
  CHECK(idle.needed_last()->page != 34);
}

TEST_CASE("idle pages: where nothing is foreseen the longest unused one goes") {
  NextUses uses;
  IdlePages idle(uses);
  sweep(uses, 0, 50);
  for (const PageId page : {30, 10, 20, 40}) idle.add(page, false);
  for (const PageId page : {10, 20, 30, 40}) {
    REQUIRE(idle.needed_last());
    CHECK(idle.needed_last()->page == page);
    idle.remove(page);
  }
  CHECK(!idle.needed_last());
}

TEST_CASE("idle pages: what goes is spread over the loop, and the same in every round") {
  constexpr PageId kPages = 160;
  NextUses uses;
  IdlePages idle(uses);
  std::vector<bool> there(kPages, true);
  std::vector<PageId> missed;
  for (int round = 0; round < 12; ++round) {
    missed.clear();
    for (PageId page = 0; page < kPages; ++page) {
      if (!there[nth(page)]) missed.push_back(page);
      idle.remove(page);
      uses.use(page, 4);
      if (!there[nth(page)] || (round == 0 && page >= 120)) {
        const auto last = idle.needed_last();
        REQUIRE(last);
        there[nth(last->page)] = false;
        idle.remove(last->page);
      }
      there[nth(page)] = true;
      idle.add(page, false);
    }
  }
  // As few as with Belady's rule, and not all in a row.
  CHECK(missed.size() <= 44);
  int in_a_row = 0;
  for (std::size_t i = 1; i < missed.size(); ++i) in_a_row += missed[i] == missed[i - 1] + 1;
  CHECK(in_a_row <= static_cast<int>(missed.size()) / 2);
}

}  // namespace
}  // namespace penstock::testing
