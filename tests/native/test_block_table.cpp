// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <random>

#include "doctest/doctest.h"
#include "process/block_table.hpp"

namespace penstock::engine {
namespace {

struct Piece {
  Addr address = 0;
  Bytes bytes = 0;
  std::uint64_t id = 0;
};

TEST_CASE("block table: a lookup that is remembered ends with its block") {
  BlockTable<Piece> table;
  CHECK(table.find(0) == nullptr);
  table.insert({1000, 100, 1});
  table.insert({1100, 50, 2});
  CHECK(table.find(999) == nullptr);
  REQUIRE(table.find(1099) != nullptr);
  CHECK(table.find(1099)->id == 1);
  CHECK(table.find(1099) == table.find(1000));
  table.erase(1050);  // no block begins there
  CHECK(table.find(1099)->id == 1);
  table.erase(1000);
  CHECK(table.find(1099) == nullptr);
  CHECK(table.find(1100)->id == 2);
  table.insert({1040, 60, 3});
  CHECK(table.find(1099)->id == 3);
  CHECK(table.find(1000) == nullptr);
  int blocks = 0;
  table.each([&](const Piece& piece) { blocks += piece.id == 2 || piece.id == 3 ? 1 : 100; });
  CHECK(blocks == 2);
}

TEST_CASE("block table: agrees with a plain map through any order of calls") {
  std::mt19937_64 random(3);
  BlockTable<Piece> table;
  std::map<Addr, Piece> plain;
  std::uint64_t next = 0;
  for (int i = 0; i < 60000; ++i) {
    const Addr place = 64 * (1 + random() % 200);
    switch (random() % 4) {
      case 0: {  // one of a few sizes, in a place of its own
        const Piece piece{place, 8 * (1 + random() % 8), ++next};
        if (plain.emplace(place, piece).second) table.insert(piece);
        break;
      }
      case 1:
        plain.erase(place);
        table.erase(place);
        break;
      default: {
        const Addr address = place + random() % 64;
        const auto found = plain.find(place);
        const bool inside = found != plain.end() && address < place + found->second.bytes;
        const Piece* const got = table.find(address);
        REQUIRE((got != nullptr) == inside);
        if (inside) REQUIRE(got->id == found->second.id);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::engine
