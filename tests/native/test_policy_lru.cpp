// SPDX-License-Identifier: Apache-2.0
// The replay of LRU against one that searches instead of keeping order, and MIN against the true
// optimum.
#include <algorithm>
#include <map>
#include <vector>

#include "doctest/doctest.h"
#include "policy/planning/lru.hpp"
#include "policy/planning/schedule.hpp"
#include "policy_on_demand.hpp"
#include "policy_sequences.hpp"

namespace penstock::policy {
namespace {

using testing::any_sequence;
using testing::Evict;
using testing::on_demand;
using testing::pick;
using testing::Random;
using testing::Traffic;

// The second iteration; the page to evict is looked for among all.
LruReplay reference(const Sequence& sequence, std::int32_t slots) {
  std::map<PageId, std::int64_t> used;  // of what is resident
  std::int64_t clock = 0;
  LruReplay replay;
  for (int iteration = 0; iteration < 2; ++iteration) {
    replay = {};
    for (const Step& step : sequence.steps) {
      for (const PageId page : step.pages) replay.hits.push_back(used.contains(page));
      for (const PageId page : step.pages) {
        if (used.contains(page)) continue;
        if (std::ssize(used) == slots) {
          PageId victim = -1;
          for (const auto& [candidate, when] : used) {
            if (std::ranges::find(step.pages, candidate) != step.pages.end()) continue;
            if (victim < 0 || when < used[victim]) victim = candidate;
          }
          used.erase(victim);
        }
        used[page] = ++clock;
        replay.bytes_in += sequence.page_bytes[static_cast<std::size_t>(page)];
      }
      for (const PageId page : step.pages) used[page] = ++clock;
    }
  }
  return replay;
}

// The fewest loads of any policy, from an empty pool: over all sets that can be resident.
std::int64_t optimum(const Sequence& sequence, std::int32_t slots, int iterations) {
  std::map<std::uint32_t, std::int64_t> fewest{{0, 0}};
  for (int i = 0; i < iterations; ++i) {
    for (const Step& step : sequence.steps) {
      std::uint32_t needed = 0;
      for (const PageId page : step.pages) needed |= 1u << page;
      std::map<std::uint32_t, std::int64_t> after;
      for (const auto& [resident, loads] : fewest) {
        const std::int64_t total = loads + __builtin_popcount(needed & ~resident);
        const std::uint32_t others = resident & ~needed;
        for (std::uint32_t keep = others;; keep = (keep - 1) & others) {
          if (__builtin_popcount(keep | needed) <= slots) {
            const auto at = after.try_emplace(keep | needed, total).first;
            at->second = std::min(at->second, total);
          }
          if (keep == 0) break;
        }
      }
      fewest = std::move(after);
    }
  }
  std::int64_t best = INT64_MAX;
  for (const auto& [resident, loads] : fewest) best = std::min(best, loads);
  return best;
}

TEST_CASE("The replay of LRU agrees with one that searches, and repeats itself") {
  Random random(11);
  for (int i = 0; i < 400; ++i) {
    const Sequence sequence = any_sequence(random);
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 8);
    CAPTURE(i);
    const LruReplay found = replay_lru(sequence, slots);
    const LruReplay expected = reference(sequence, slots);
    REQUIRE(found.hits == expected.hits);
    REQUIRE(found.bytes_in == expected.bytes_in);
    const std::vector<Traffic> longer = on_demand(sequence, slots, Evict::kLru, 6);
    for (std::size_t n = 1; n < 6; ++n) {
      REQUIRE(longer[n].loads == std::ranges::count(found.hits, false));
      REQUIRE(longer[n].bytes_in == found.bytes_in);
    }
  }
}

TEST_CASE("MIN, which plans are held against, loads as few pages as any policy can") {
  Random random(12);
  for (int i = 0; i < 200; ++i) {
    const Sequence sequence = testing::random_sequence(random, pick(random, 1, 7),
                                                       pick(random, 1, 6), pick(random, 1, 3));
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 3);
    std::int64_t loads = 0;
    for (const Traffic& traffic : on_demand(sequence, slots, Evict::kBelady, 3)) {
      loads += traffic.loads;
    }
    CAPTURE(i);
    REQUIRE(loads == optimum(sequence, slots, 3));
  }
}

TEST_CASE("A sweep longer than the pool: LRU hits nothing, MIN what the pool holds") {
  const Sequence sequence = testing::sweep(std::vector<int>(100, 10), 100);
  const LruReplay lru = replay_lru(sequence, 900);
  CHECK(std::ranges::count(lru.hits, false) == 1000);
  CHECK(lru.bytes_in == 100'000);
  CHECK(on_demand(sequence, 900, Evict::kBelady, 4).back().loads <= 102);
  CHECK(replay_lru(sequence, 1000).bytes_in == 0);
  CHECK(replay_lru({}, 0).hits.empty());
}

}  // namespace
}  // namespace penstock::policy
