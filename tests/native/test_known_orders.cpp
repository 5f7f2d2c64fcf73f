// SPDX-License-Identifier: Apache-2.0
// Orders that were learned before, known again by the last uses.
#include <algorithm>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "policy/learning/known_orders.hpp"

namespace penstock::testing {
namespace {

using policy::learning::KnownOrders;
using Uses = std::vector<KnownOrders::Use>;

Uses count(int from, int uses) {
  Uses order(static_cast<std::size_t>(uses));
  std::iota(order.begin(), order.end(), from);
  return order;
}

// The `uses` before position `end` of the cycle.
Uses before(const Uses& order, std::size_t end, std::size_t uses) {
  Uses last;
  for (std::size_t i = 0; i < uses; ++i) {
    last.push_back(order[(end + order.size() * uses - uses + i) % order.size()]);
  }
  return last;
}

TEST_CASE("known orders: the one that the last uses follow goes on from there") {
  KnownOrders known;
  const Uses one = count(0, 40);
  const Uses other = count(100, 7);  // shorter than what tells
  known.add(one);
  known.add(other);
  for (std::size_t end : {0u, 5u, 39u}) {
    CAPTURE(end);
    auto next = known.followed(before(one, end, KnownOrders::kTelling));
    REQUIRE(next.has_value());
    CHECK(next->next == end);
    CHECK(next->order == one);
  }
  auto next = known.followed(before(other, 3, KnownOrders::kTelling + 5));
  REQUIRE(next.has_value());
  CHECK(next->next == 3);
  CHECK(next->order == other);
}

TEST_CASE("known orders: too few uses, or others, tell nothing") {
  KnownOrders known;
  const Uses order = count(0, 40);
  known.add(order);
  CHECK(!known.followed(before(order, 20, KnownOrders::kTelling - 1)).has_value());
  Uses last = before(order, 20, KnownOrders::kTelling);
  last.front() = 1000;
  CHECK(!known.followed(last).has_value());
  CHECK(!KnownOrders().followed(before(order, 20, KnownOrders::kTelling)).has_value());
}

TEST_CASE("known orders: rounds of one that is known, and little else, are no order of their own") {
  KnownOrders known;
  const Uses token = count(0, 40);
  known.add(token);
  const auto text = [&](int tokens, int prompt) {
    Uses all = count(1000, prompt);
    for (int i = 0; i < tokens; ++i) all.insert(all.end(), token.begin(), token.end());
    return all;
  };
  CHECK(known.covers(text(16, 40)));
  CHECK(known.covers(text(7, 40)));
  CHECK(!known.covers(text(6, 40)));  // every seventh use is another
  CHECK(!known.covers(text(3, 0)));   // not four rounds
  CHECK(!known.covers(text(0, 400)));
  CHECK(!KnownOrders().covers(text(16, 40)));
  Uses begun = text(16, 40);
  std::rotate(begun.begin(), begun.begin() + 57, begun.end());
  CHECK(known.covers(begun));
  Uses others = text(16, 0);  // never kTelling in a row
  for (std::size_t i = 0; i < others.size(); i += 10) others[i] = 2000;
  CHECK(!known.covers(others));
}

TEST_CASE("known orders: the same cycle is kept once, and the least recently followed goes") {
  KnownOrders known;
  const Uses order = count(0, 40);
  Uses turned = order;
  std::rotate(turned.begin(), turned.begin() + 11, turned.end());
  known.add(order);
  known.add(turned);
  CHECK(known.size() == 1);
  known.remember(5);
  known.remember(3);
  known.add(order);  // what is known of it stays
  const auto again = known.followed(before(order, 20, KnownOrders::kTelling));
  REQUIRE(again.has_value());
  CHECK(again->reserve == 5);
  known.add({});
  CHECK(known.size() == 1);
  for (int i = 1; i <= 7; ++i) known.add(count(1000 * i, 30));
  CHECK(known.followed(before(order, 20, KnownOrders::kTelling)).has_value());
  known.add(count(9000, 30));
  CHECK(known.followed(before(order, 20, KnownOrders::kTelling)).has_value());
  CHECK(!known.followed(before(count(1000, 30), 20, KnownOrders::kTelling)).has_value());
}

}  // namespace
}  // namespace penstock::testing
