// SPDX-License-Identifier: Apache-2.0
// How long pages wait of which nothing is foreseen.
#include "doctest/doctest.h"
#include "policy/residency/life_table.hpp"

namespace penstock::testing {
namespace {

using policy::residency::LifeTable;

TEST_CASE("life table: where nothing was seen, older pages and those of longer intervals wait") {
  LifeTable table;
  table.tell();
  for (const LifeTable::Position age : {0, 1, 5, 40, 300, 5000}) {
    CHECK(table.left(2 * age + 1, 64) > table.left(age, 64));
    CHECK(table.left(age, 256) > table.left(age, 64));
  }
  CHECK(table.left(LifeTable::Position{1} << 40, LifeTable::Position{1} << 40) > 10000);
}

TEST_CASE("life table: pages that are used at one age are so until then") {
  LifeTable table;
  for (int page = 0; page < 200; ++page) {  // used 120 uses after the last one, all of them
    for (LifeTable::Position age = 1; age < 120; ++age) table.waited(age, 100, 1);
    table.used(120, 100);
  }
  table.tell();
  CHECK(table.left(1, 100) > 90);
  CHECK(table.left(1, 100) < 240);  // for all that its classes tell, some come through the last one
  CHECK(table.left(50, 100) < table.left(1, 100));
  CHECK(table.left(100, 100) < table.left(50, 100));
  CHECK(table.left(1, 1000) > 200);  // of which nothing was seen
}

TEST_CASE("life table: half of them at once, the others long after") {
  LifeTable table;
  for (int page = 0; page < 200; ++page) {
    const LifeTable::Position wait = page % 2 == 0 ? 20 : 2000;
    for (LifeTable::Position age = 4; age < wait; age += 4) table.waited(age, 500, 4);
    table.used(wait, 500);
  }
  table.tell();
  const LifeTable::Position at_first = table.left(4, 500);
  CHECK(at_first > 700);
  CHECK(at_first < 2000);
  CHECK(table.left(100, 500) > at_first);  // it is one of the others
}

TEST_CASE("life table: what was is forgotten by and by") {
  LifeTable table;
  const auto waits = [&](LifeTable::Position uses, int pages) {
    for (int page = 0; page < pages; ++page) {
      table.waited(10, 100, uses);
      table.used(10, 100);
    }
    table.tell();
  };
  waits(1000, 2000);
  const LifeTable::Position before = table.left(10, 100);
  waits(1, 2000);
  CHECK(2 * table.left(10, 100) < before);
}

}  // namespace
}  // namespace penstock::testing
