// SPDX-License-Identifier: Apache-2.0
// The classic rules against the simplest thing that could be right, and where a whole sequence
// repeats itself.
#include <algorithm>
#include <random>

#include "doctest/doctest.h"
#include "lab/models/eviction.hpp"
#include "policy/learning/iterations.hpp"

namespace penstock::testing {
namespace {

using policy::PageId;
using policy::baseline::Evict;
using policy::baseline::Eviction;
using policy::learning::find_iterations;
using policy::learning::Iterations;

std::int64_t next_use(const std::vector<PageId>& uses, std::size_t after, PageId page) {
  for (std::size_t i = after + 1; i < uses.size(); ++i) {
    if (uses[i] == page) return static_cast<std::int64_t>(i);
  }
  return static_cast<std::int64_t>(uses.size()) + page;  // never again
}

int misses(Evict which, const std::vector<PageId>& uses, std::size_t slots) {
  Eviction rule(which);
  std::vector<PageId> resident;
  int count = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (std::find(resident.begin(), resident.end(), uses[i]) == resident.end()) {
      ++count;
      if (resident.size() == slots) {
        const PageId victim = rule.victim([](PageId) { return true; });
        rule.left(victim);
        std::erase(resident, victim);
      }
      resident.push_back(uses[i]);
    }
    rule.used(uses[i], static_cast<std::int64_t>(i), next_use(uses, i, uses[i]));
    CHECK(rule.resident() == resident.size());
  }
  return count;
}

// By looking at all that was and all that will be, each time.
int misses_slowly(Evict which, const std::vector<PageId>& uses, std::size_t slots) {
  std::vector<PageId> resident;  // in the order of their coming
  int count = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (std::find(resident.begin(), resident.end(), uses[i]) != resident.end()) continue;
    ++count;
    if (resident.size() == slots) {
      const auto score = [&](PageId page) -> std::int64_t {
        if (which == Evict::kBelady) return -next_use(uses, i, page);
        for (std::size_t back = i; which == Evict::kLru && back-- > 0;) {
          if (uses[back] == page) return static_cast<std::int64_t>(back);
        }
        return 0;  // FIFO: the first of all
      };
      resident.erase(std::min_element(resident.begin(), resident.end(),
                                      [&](PageId a, PageId b) { return score(a) < score(b); }));
    }
    resident.push_back(uses[i]);
  }
  return count;
}

TEST_CASE("eviction: each rule misses as often as its definition says") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    std::vector<PageId> uses(200);
    for (PageId& use : uses) use = static_cast<PageId>(random() % 12);
    for (const Evict which : {Evict::kLru, Evict::kFifo, Evict::kBelady}) {
      CHECK(misses(which, uses, 5) == misses_slowly(which, uses, 5));
    }
    CHECK(misses(Evict::kBelady, uses, 5) <= misses(Evict::kLru, uses, 5));
    CHECK(misses(Evict::kBelady, uses, 5) <= misses(Evict::kFifo, uses, 5));
  }
}

TEST_CASE("eviction: FIFO's own anomaly, more room and more misses") {
  const std::vector<PageId> uses = {1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5};
  CHECK(misses(Evict::kFifo, uses, 3) == 9);
  CHECK(misses(Evict::kFifo, uses, 4) == 10);
}

TEST_CASE("eviction: pages that may not leave are looked past") {
  Eviction rule(Evict::kLru);
  for (PageId page = 0; page < 4; ++page) rule.used(page, page, 0);
  CHECK(rule.victim([](PageId page) { return page >= 2; }) == 2);
  CHECK(rule.victim([](PageId) { return false; }) == -1);
  rule.used(2, 10, 0);
  CHECK(rule.victim([](PageId page) { return page >= 2; }) == 3);
  rule.left(9);  // was never there
  CHECK(rule.resident() == 4);
}

std::vector<int> repeat(const std::vector<int>& uses, int times) {
  std::vector<int> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), uses.begin(), uses.end());
  return all;
}

TEST_CASE("iterations: the stretch that repeats itself, after a beginning that does not") {
  const std::vector<int> iteration = {5, 6, 7, 7, 7, 8, 5, 9};
  std::vector<int> uses = {100, 101, 102, 5, 100};
  const std::vector<int> loop = repeat(iteration, 6);
  uses.insert(uses.end(), loop.begin(), loop.end());
  uses.push_back(200);
  const Iterations found = find_iterations(uses);
  CHECK(found.first == 5);
  CHECK(found.period == 8);
  CHECK(found.count == 6);
}

TEST_CASE("iterations: parts that repeat within one do not hide it") {
  // Four rounds of one part and an end, as accumulated gradients and their update are.
  std::vector<int> iteration = repeat({1, 2, 3, 4, 5}, 4);
  iteration.insert(iteration.end(), {20, 21, 22});
  const Iterations found = find_iterations(repeat(iteration, 5));
  CHECK(found.period == 23);
  CHECK(found.count == 5);
}

TEST_CASE("iterations: none where nothing repeats itself") {
  std::vector<int> uses(100);
  for (int i = 0; i < 100; ++i) uses[static_cast<std::size_t>(i)] = i;
  CHECK(find_iterations(uses).count == 0);
  CHECK(find_iterations({}).count == 0);
}

}  // namespace
}  // namespace penstock::testing
