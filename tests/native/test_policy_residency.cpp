// SPDX-License-Identifier: Apache-2.0
// LRU, FIFO and Belady's MIN against references that search instead of keeping order, and MIN
// against the true optimum.
#include <algorithm>
#include <map>
#include <vector>

#include "doctest/doctest.h"
#include "policy/residency.hpp"
#include "policy/schedule.hpp"
#include "policy_sequences.hpp"

namespace penstock::policy {
namespace {

using testing::any_sequence;
using testing::pick;
using testing::Random;

// Steps until the page is used again after step `from`, counted over iterations.
std::int64_t next_use(const Sequence& sequence, PageId page, std::int64_t from) {
  const auto steps = static_cast<std::int64_t>(sequence.steps.size());
  for (std::int64_t step = from + 1;; ++step) {
    const std::vector<PageId>& pages = sequence.steps[static_cast<std::size_t>(step % steps)].pages;
    if (std::find(pages.begin(), pages.end(), page) != pages.end()) return step;
  }
}

// The page to evict is looked for among all, by the definition of the policy.
std::vector<Traffic> reference(const Sequence& sequence, std::int32_t slots,
                               Replacement replacement, int iterations) {
  struct Resident {
    std::int64_t arrived, used;
  };
  std::map<PageId, Resident> pool;
  std::vector<Traffic> result;
  std::int64_t clock = 0;
  std::int64_t now = 0;
  for (int i = 0; i < iterations; ++i) {
    Traffic traffic;
    for (const Step& step : sequence.steps) {
      const auto running = [&](PageId page) {
        return std::find(step.pages.begin(), step.pages.end(), page) != step.pages.end();
      };
      for (const PageId page : step.pages) {
        ++traffic.uses;
        if (pool.count(page) != 0) continue;
        if (std::ssize(pool) == slots) {
          PageId victim = -1;
          std::int64_t best = 0;
          for (const auto& [candidate, resident] : pool) {
            if (running(candidate)) continue;
            const std::int64_t key = replacement == Replacement::kLru ? -resident.used
                                     : replacement == Replacement::kFifo
                                         ? -resident.arrived
                                         : next_use(sequence, candidate, now);
            if (victim < 0 || key >= best) {
              victim = candidate;
              best = key;
            }
          }
          pool.erase(victim);
        }
        pool[page] = {++clock, 0};
        ++traffic.loads;
        traffic.bytes_in += sequence.page_bytes[static_cast<std::size_t>(page)];
      }
      for (const PageId page : step.pages) pool[page].used = ++clock;
      ++now;
    }
    result.push_back(traffic);
  }
  return result;
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

TEST_CASE("Replay agrees with a policy that searches") {
  Random random(11);
  for (int i = 0; i < 400; ++i) {
    const Sequence sequence = any_sequence(random);
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 8);
    for (const Replacement replacement :
         {Replacement::kLru, Replacement::kFifo, Replacement::kBelady}) {
      CAPTURE(i);
      CAPTURE(static_cast<int>(replacement));
      const auto found = replay_iterations(sequence, slots, replacement, 3);
      REQUIRE(found.ok());
      const std::vector<Traffic> expected = reference(sequence, slots, replacement, 3);
      for (std::size_t n = 0; n < expected.size(); ++n) {
        REQUIRE(found.value()[n].uses == expected[n].uses);
        REQUIRE(found.value()[n].loads == expected[n].loads);
        REQUIRE(found.value()[n].bytes_in == expected[n].bytes_in);
      }
    }
  }
}

TEST_CASE("MIN loads as few pages as any policy can") {
  Random random(12);
  for (int i = 0; i < 200; ++i) {
    const Sequence sequence = testing::random_sequence(random, pick(random, 1, 7),
                                                       pick(random, 1, 6), pick(random, 1, 3));
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 3);
    const auto found = replay_iterations(sequence, slots, Replacement::kBelady, 3);
    REQUIRE(found.ok());
    std::int64_t loads = 0;
    for (const Traffic& traffic : found.value()) loads += traffic.loads;
    CAPTURE(i);
    REQUIRE(loads == optimum(sequence, slots, 3));
  }
}

TEST_CASE("LRU repeats itself from the second iteration on; MIN may alternate") {
  Random random(13);
  for (int i = 0; i < 500; ++i) {
    const Sequence sequence = any_sequence(random);
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 8);
    const auto lru = replay_iterations(sequence, slots, Replacement::kLru, 6);
    REQUIRE(lru.ok());
    for (std::size_t n = 2; n < 6; ++n) REQUIRE(lru.value()[n].loads == lru.value()[1].loads);
  }
  const Sequence three = testing::sweep({1, 1, 1}, 1);
  const auto min = replay_iterations(three, 2, Replacement::kBelady, 8);
  REQUIRE(min.ok());
  CHECK(min.value()[6].loads + min.value()[7].loads == 3);
  CHECK(min.value()[6].loads != min.value()[7].loads);
}

TEST_CASE("A sweep longer than the pool: LRU and FIFO hit nothing, MIN what the pool holds") {
  const Sequence sequence = testing::sweep(std::vector<int>(100, 10), 100);
  for (const Replacement replacement : {Replacement::kLru, Replacement::kFifo}) {
    const auto traffic = replay(sequence, 900, replacement);
    REQUIRE(traffic.ok());
    CHECK(traffic.value().uses == 1000);
    CHECK(traffic.value().loads == 1000);
    CHECK(traffic.value().bytes_in == 100'000);
  }
  const auto min = replay(sequence, 900, Replacement::kBelady);
  REQUIRE(min.ok());
  CHECK(min.value().loads <= 102);
  CHECK(replay(sequence, 1000, Replacement::kLru).value().loads == 0);
}

TEST_CASE("Hits are those that the traffic counts") {
  Random random(14);
  for (int i = 0; i < 200; ++i) {
    const Sequence sequence = any_sequence(random);
    const std::int32_t slots = smallest_pool(sequence) + pick(random, 0, 8);
    for (const Replacement replacement :
         {Replacement::kLru, Replacement::kFifo, Replacement::kBelady}) {
      const auto traffic = replay(sequence, slots, replacement);
      const auto hits = replay_hits(sequence, slots, replacement);
      REQUIRE(traffic.ok());
      REQUIRE(hits.ok());
      REQUIRE(std::ssize(hits.value()) == traffic.value().uses);
      REQUIRE(std::count(hits.value().begin(), hits.value().end(), false) == traffic.value().loads);
    }
  }
}

TEST_CASE("Replay refuses what cannot be replayed") {
  const Sequence sequence = testing::sweep({3, 2}, 10);
  CHECK(replay(sequence, 2, Replacement::kLru).status().code() == Code::kOutOfMemory);
  CHECK(replay(sequence, -1, Replacement::kLru).status().code() == Code::kInvalidArgument);
  CHECK(replay(sequence, 3, Replacement::kLru, 0).status().code() == Code::kInvalidArgument);
  Sequence bad = sequence;
  bad.steps[1].pages[0] = 5;
  CHECK(replay(bad, 3, Replacement::kLru).status().code() == Code::kInvalidArgument);
  bad.steps[1].pages[0] = -1;
  CHECK(replay(bad, 3, Replacement::kFifo).status().code() == Code::kInvalidArgument);
  bad.steps[1].pages[0] = bad.steps[1].pages[1];
  CHECK(replay(bad, 3, Replacement::kBelady).status().code() == Code::kInvalidArgument);
  bad = sequence;
  bad.steps[0].compute_ms = -1;
  CHECK(replay(bad, 3, Replacement::kLru).status().code() == Code::kInvalidArgument);
  const auto empty = replay({}, 0, Replacement::kBelady);
  REQUIRE(empty.ok());
  CHECK(empty.value().loads == 0);
}

}  // namespace
}  // namespace penstock::policy
