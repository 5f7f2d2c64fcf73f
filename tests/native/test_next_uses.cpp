// SPDX-License-Identifier: Apache-2.0
// Next uses of pages, foreseen from what followed before.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "policy/learning/ahead_record.hpp"
#include "policy/learning/next_uses.hpp"

namespace penstock::testing {
namespace {

using policy::PageId;
using policy::learning::AheadRecord;
using policy::learning::NextUses;

NextUses made() {
  NextUses uses;
  uses.begin();
  uses.cover(2000);
  return uses;
}

void sweep(NextUses& uses, PageId first, PageId end) {
  for (PageId page = first; page < end; ++page) uses.use(page, 4);
}

TEST_CASE("next uses: one round of a loop tells the next") {
  NextUses uses = made();
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
  NextUses uses = made();
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

TEST_CASE("next uses: one thing that was chosen long ago does not lead back to what was then") {
  NextUses uses = made();
  for (int i = 0; i < 2; ++i) {
    sweep(uses, 0, 3);
    sweep(uses, 100, 120);
  }
  for (int i = 0; i < 2; ++i) {
    sweep(uses, 0, 3);
    sweep(uses, 200, 203);
  }
  const std::uint64_t jumps = uses.jumps();
  sweep(uses, 0, 3);
  sweep(uses, 100, 104);  // in the place of the last of three
  sweep(uses, 201, 202);
  CHECK(uses.jumps() == jumps);
  CHECK(uses.page_at(uses.place()) == 202);
  sweep(uses, 0, 3);
  sweep(uses, 100, 118);  // and after all it is as it was then
  CHECK(uses.page_at(uses.place()) == 118);
}

TEST_CASE("next uses: the longest context tells one phase from another") {
  // The same ten pages come before other ones.
  NextUses uses = made();
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
  NextUses uses = made();
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
  NextUses uses = made();
  int sure = 0;
  for (int i = 0; i < 20000; ++i) {
    uses.use(static_cast<PageId>(random() % 300), 8);
    sure += uses.sure();
  }
  CHECK(sure < 200);
}

TEST_CASE("next uses: what is touched again and again is one use, which lasts") {
  NextUses uses = made();
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

TEST_CASE("next uses: what every layer touches does not hide which layer it is") {
  NextUses uses = made();
  const auto layer = [&](PageId own) {
    for (PageId page = own; page < own + 4; ++page) uses.use(page, 60);
    for (PageId page = 1000; page < 1040; ++page) uses.use(page, 60);
  };
  for (int round = 0; round < 2; ++round) {
    for (PageId own = 0; own < 200; own += 4) layer(own);
  }
  for (PageId own = 0; own < 100; own += 4) layer(own);
  REQUIRE(uses.sure());
  CHECK(uses.page_at(uses.place()) == 100);
  CHECK(uses.next(150) - uses.place() == 50);
  CHECK(uses.next(50) - uses.place() == 150);
  // They are needed soon, though they began long ago and were never away.
  CHECK(uses.next(1010) - uses.place() < 60);
}

TEST_CASE("next uses: a history that is full goes on") {
  NextUses uses = made();
  for (int round = 0; round < 400; ++round) sweep(uses, 0, 500);
  sweep(uses, 0, 250);
  CHECK(uses.sure());
  CHECK(uses.end() == 400 * 500 + 250);
  CHECK(uses.next(400) - uses.place() == 150);
}

// Layers of one page that every round uses and of experts, each in two pages, of which a few are
// chosen in each.
struct Mixture {
  static constexpr PageId kLayers = 10, kExperts = 12, kChosen = 3;
  std::mt19937 random{3};

  static PageId always(PageId layer) { return layer * (1 + 2 * kExperts); }
  std::vector<PageId> token() {
    std::vector<PageId> pages;
    for (PageId layer = 0; layer < kLayers; ++layer) {
      pages.push_back(always(layer));
      std::vector<PageId> experts(nth(kExperts));
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      for (PageId i = 0; i < kChosen; ++i) {
        const PageId first = always(layer) + 1 + 2 * experts[nth(i)];
        pages.insert(pages.end(), {first, first + 1});
      }
    }
    return pages;
  }
};

TEST_CASE("next uses: what a round's data choose is not trusted") {
  NextUses uses = made();
  Mixture mixture;
  for (int token = 0; token < 80; ++token) {
    for (const PageId page : mixture.token()) uses.use(page, 4);
  }
  int trusted = 0;
  for (PageId layer = 0; layer < Mixture::kLayers; ++layer) {
    for (PageId i = 1; i <= 2 * Mixture::kExperts; ++i) {
      trusted += uses.trusted(Mixture::always(layer) + i);
    }
  }
  CHECK(trusted < 24);  // of 240
}

TEST_CASE(
    "next uses: a loop's pages are trusted, also behind a part that is left out now and then") {
  NextUses uses = made();
  for (int round = 0; round < 12; ++round) {
    sweep(uses, 0, round % 3 == 1 ? 40 : 100);
    sweep(uses, 100, 200);
  }
  for (PageId page = 0; page < 200; ++page) {
    const bool at_the_fork = page >= 40 && page < 50;  // did not come in one of three
    if (!at_the_fork) CHECK(uses.trusted(page));
  }
}

TEST_CASE("next uses: how long it is between uses, whatever a use lasts") {
  NextUses uses = made();
  for (int round = 0; round < 8; ++round) {
    sweep(uses, 0, 100);
    uses.use(99, 4);
    if (round % 2 == 0) sweep(uses, 100, 150);
  }
  CHECK(uses.interval(110) == 250);
  CHECK(uses.interval(10) > 100);
  CHECK(uses.interval(10) < 150);
  CHECK(std::abs(uses.interval(99) - uses.interval(10)) <= 2);
  CHECK(uses.interval(1000) == 0);
}

int that_come(AheadRecord& record, int asked) {
  int come = 0;
  for (int i = 0; i < asked; ++i) come += record.next_comes() ? 1 : 0;
  return come;
}

TEST_CASE("ahead record: all come while most are used") {
  AheadRecord record;
  record.cover(8);
  for (int i = 0; i < 300; ++i) {
    const auto page = static_cast<PageId>(i % 8);
    record.came(page);
    i % 3 == 0 ? record.left(page) : record.used(page);
    CHECK(record.next_comes());
  }
}

TEST_CASE("ahead record: where most leave unused, few come, until that has changed") {
  AheadRecord record;
  record.cover(1);
  for (int i = 0; i < 100; ++i) {
    record.came(0);
    record.left(0);
  }
  CHECK(that_come(record, 160) == 10);
  for (int i = 0; i < 100; ++i) {  // what did not come ahead says nothing
    record.used(0);
    record.left(0);
  }
  CHECK(that_come(record, 160) == 10);
  for (int i = 0; i < 100; ++i) {
    record.came(0);
    record.used(0);
    record.left(0);
  }
  CHECK(that_come(record, 160) == 160);
}

}  // namespace
}  // namespace penstock::testing
