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
using policy::learning::LastingUse;

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

// Each number is the code of a use and of the one block that it touches, of 1 MiB.
std::vector<std::size_t> iterations_of(const std::vector<int>& codes) {
  std::vector<LastingUse> uses;
  for (const int code : codes) uses.push_back({code, {static_cast<std::uint32_t>(code)}});
  return find_iterations(uses, std::vector<Bytes>(256, kMiB));
}

TEST_CASE("iterations: what comes back to everything, after a beginning that does not") {
  std::vector<int> uses = {100, 101, 102, 103, 100};
  const std::vector<int> loop = repeat({5, 6, 7, 7, 7, 8, 5, 9}, 6);
  uses.insert(uses.end(), loop.begin(), loop.end());
  const std::vector<std::size_t> begins = iterations_of(uses);
  REQUIRE(begins.size() == 7);
  for (std::size_t i = 1; i + 1 < begins.size(); ++i) CHECK(begins[i] - begins[i - 1] == 8);
}

TEST_CASE("iterations: parts that repeat within one are none") {
  // Four rounds of one part and an end, as accumulated gradients and their update are; and a loop
  // over one layer, which does most of what is done.
  std::vector<int> iteration = repeat({1, 2, 3, 4, 5}, 4);
  iteration.insert(iteration.end(), {20, 21, 22});
  const std::vector<int> loop = repeat({30, 31}, 100);
  iteration.insert(iteration.end(), loop.begin(), loop.end());
  const std::vector<std::size_t> begins = iterations_of(repeat(iteration, 5));
  REQUIRE(begins.size() >= 5);
  for (std::size_t i = 2; i < begins.size() - 1; ++i) CHECK(begins[i] - begins[i - 1] == 223);
}

TEST_CASE("iterations: of other lengths, as texts and batches have") {
  std::vector<int> uses;
  std::vector<std::size_t> starts;
  for (const int rounds : {3, 1, 7, 2, 2, 5}) {
    starts.push_back(uses.size());
    uses.push_back(40);
    const std::vector<int> part = repeat({1, 2, 3}, rounds);
    uses.insert(uses.end(), part.begin(), part.end());
    uses.insert(uses.end(), {50, 51, 52, 53});
  }
  const std::vector<std::size_t> begins = iterations_of(uses);
  REQUIRE(begins.size() == 7);
  for (std::size_t i = 0; i < 6; ++i) CHECK(begins[i] == starts[i]);
}

TEST_CASE("iterations: none where nothing repeats itself") {
  std::vector<int> uses(100);
  for (int i = 0; i < 100; ++i) uses[static_cast<std::size_t>(i)] = i;
  CHECK(iterations_of(uses).size() < 3);
  CHECK(iterations_of({}).size() < 3);
}

}  // namespace
}  // namespace penstock::testing
