// SPDX-License-Identifier: Apache-2.0
// The period of a stream of uses, against a search that compares everything with everything.
#include <algorithm>
#include <random>

#include "doctest/doctest.h"
#include "policy/learning/period.hpp"

namespace penstock::testing {
namespace {

using policy::learning::Period;

// The shortest p of which the last 2p uses are two equal halves; 0 if there is none.
std::size_t searched(const std::vector<int>& uses) {
  for (std::size_t p = 1; 2 * p <= uses.size(); ++p) {
    if (std::equal(uses.end() - static_cast<std::ptrdiff_t>(p), uses.end(),
                   uses.end() - 2 * static_cast<std::ptrdiff_t>(p))) {
      return p;
    }
  }
  return 0;
}

TEST_CASE("period: agrees with an exhaustive search where each use occurs a few times") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const std::size_t length = 3 + random() % 40;
    std::vector<int> iteration(length);
    for (int& use : iteration) use = static_cast<int>(random() % (length * 2));
    std::vector<int> uses;
    Period period;
    for (int i = 0; i < 8; ++i) uses.push_back(static_cast<int>(1000 + random() % 50));
    for (int i = 0; i < 3; ++i) uses.insert(uses.end(), iteration.begin(), iteration.end());
    std::vector<int> fed;
    for (const int use : uses) {
      fed.push_back(use);
      const bool found = period.feed(use);
      const std::size_t wanted = searched(fed);
      CHECK(found == (wanted > 0));
      CHECK((found ? period.holding().front() : 0) == wanted);
    }
    const auto& holding = period.holding();
    CHECK(std::find(holding.begin(), holding.end(), length) != holding.end());
    CHECK(period.last(length) == iteration);
  }
}

TEST_CASE("period: a sweep of layers is found at the end of its second round, from any start") {
  std::vector<int> sweep;
  for (int layer = 0; layer < 50; ++layer) sweep.push_back(layer);
  sweep.push_back(0);  // the head shares the embedding's weight
  Period period;
  for (int i = 30; i < 51; ++i) CHECK_FALSE(period.feed(sweep[static_cast<std::size_t>(i)]));
  std::size_t fed = 0;
  bool found = false;
  while (!found) found = period.feed(sweep[fed++ % sweep.size()]) && period.holding().front() == 51;
  CHECK(fed <= 2 * sweep.size());
  // Another order breaks it, and is found in turn.
  CHECK_FALSE((period.feed(7) && period.holding().front() == 51));
  found = false;
  for (int i = 0; i < 200 && !found; ++i)
    found = period.feed(49 - i % 50) && period.holding().front() == 50;
  CHECK(found);
}

TEST_CASE("period: a use that comes again at every layer does not hide the iteration") {
  Period period;
  int fed = 0;
  bool found = false;
  for (int round = 0; round < 2; ++round) {
    for (int layer = 1; layer <= 48; ++layer) {
      for (const int use : {0, layer, 0, 1000 + layer}) {
        ++fed;
        found = period.feed(use);
      }
    }
  }
  CHECK(found);
  CHECK(period.holding().back() == 48 * 4);
}

TEST_CASE("period: a long stream without one costs no memory in the end") {
  Period period;
  std::mt19937 random(3);
  for (int i = 0; i < 400'000; ++i) period.feed(static_cast<int>(random() % 100'000));
  CHECK(period.fed() == 400'000);
}

}  // namespace
}  // namespace penstock::testing
