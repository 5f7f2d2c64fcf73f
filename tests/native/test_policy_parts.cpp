// SPDX-License-Identifier: Apache-2.0
// What the planner is made of: shares, occupancy, streams, spans, slots; and its speed.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "policy/planning/arc_colouring.hpp"
#include "policy/planning/occupancy.hpp"
#include "policy/planning/quota.hpp"
#include "policy/planning/schedule.hpp"
#include "policy/planning/selection.hpp"
#include "policy/planning/slots.hpp"
#include "policy/planning/spans.hpp"
#include "policy_sequences.hpp"
#include "policy_slots.hpp"

namespace penstock::policy {
namespace {

using testing::any_sequence;
using testing::least_distance;
using testing::most_overlapping;
using testing::pick;
using testing::Random;

TEST_CASE("Shares add up, keep the limits, and follow the weights") {
  CHECK(share_out({9, 9, 9}, {1, 1, 1}, 9) == std::vector<std::int32_t>{3, 3, 3});
  CHECK(share_out({9, 9, 9}, {1, 2, 3}, 12) == std::vector<std::int32_t>{2, 4, 6});
  CHECK(share_out({9, 1, 9}, {1, 9, 1}, 7) == std::vector<std::int32_t>{3, 1, 3});
  CHECK(share_out({2, 2}, {0, 1}, 4) == std::vector<std::int32_t>{2, 2});
  CHECK(share_out({2, 2}, {0, 0}, 2) == std::vector<std::int32_t>{1, 1});
  CHECK(share_out({2, 3}, {1, 1}, 99) == std::vector<std::int32_t>{2, 3});
  CHECK(share_out({}, {}, 3).empty());
  Random random(41);
  for (int i = 0; i < 2000; ++i) {
    const auto n = static_cast<std::size_t>(pick(random, 1, 40));
    std::vector<std::int32_t> limit(n);
    for (std::int32_t& l : limit) l = pick(random, 0, 9);
    const std::int64_t most = std::accumulate(limit.begin(), limit.end(), std::int64_t{0});
    const std::int64_t total = pick(random, 0, static_cast<int>(most) + 3);
    const double level = static_cast<double>(std::min(total, most)) / static_cast<double>(n);
    const std::vector<std::int32_t> share = share_out(limit, std::vector<double>(n, 0.3), total);
    std::int64_t sum = 0;
    bool limited = false;
    for (std::size_t k = 0; k < n; ++k) {
      REQUIRE(share[k] >= 0);
      REQUIRE(share[k] <= limit[k]);
      sum += share[k];
      limited = limited || limit[k] < level;
      // With equal weights and no limit in the way, every partial sum is the exact one, rounded.
      if (!limited && *std::min_element(limit.begin(), limit.end()) > level) {
        REQUIRE(std::abs(static_cast<double>(sum) - level * static_cast<double>(k + 1)) <= 0.51);
      }
    }
    REQUIRE(sum == std::min(total, most));
  }
}

TEST_CASE("Occupancy agrees with an array") {
  Random random(42);
  for (int i = 0; i < 300; ++i) {
    const int steps = pick(random, 1, 40);
    std::vector<std::int32_t> values(static_cast<std::size_t>(steps));
    for (std::int32_t& value : values) value = pick(random, -5, 5);
    Occupancy occupancy(values);
    for (int k = 0; k < 60; ++k) {
      const int first = pick(random, 0, steps - 1);
      const int length = pick(random, 0, steps);
      const int delta = pick(random, -3, 3);
      occupancy.add(first, length, delta);
      for (int n = 0; n < length; ++n)
        values[static_cast<std::size_t>((first + n) % steps)] += delta;
      const int from = pick(random, 0, steps - 1);
      const int count = pick(random, 0, steps);
      std::int32_t most = Occupancy::kNothing;
      for (int n = 0; n < count; ++n) {
        most = std::max(most, values[static_cast<std::size_t>((from + n) % steps)]);
      }
      REQUIRE(occupancy.max(from, count) == most);
    }
    REQUIRE(occupancy.values() == values);
  }
}

TEST_CASE("Every way to select stays within its capacity") {
  Random random(43);
  for (int i = 0; i < 1500; ++i) {
    const Sequence sequence = any_sequence(random);
    const UseIndex index(sequence);
    const std::int32_t capacity = smallest_pool(sequence) + pick(random, 0, 10);
    for (const KeptGaps& kept :
         {select_pages(sequence, index, capacity), select_gaps(sequence, index, capacity),
          select_lru_gaps(sequence, index, capacity)}) {
      const Spans spans = join_gaps(index, kept);
      CAPTURE(i);
      REQUIRE(most_overlapping(spans.loads, index.steps()) + std::ssize(spans.kept) <= capacity);
      const auto lost = std::count(kept.begin(), kept.end(), 0);
      REQUIRE(lost == std::ssize(spans.loads));
    }
  }
}

// Of two loads in a slot the first must be over before the second starts.
void check_no_overlap(const std::vector<Load>& loads, StepId steps, std::int32_t slots) {
  std::vector<std::vector<bool>> taken(static_cast<std::size_t>(slots),
                                       std::vector<bool>(static_cast<std::size_t>(steps), false));
  for (const Load& load : loads) {
    REQUIRE(load.slot >= 0);
    REQUIRE(load.slot < slots);
    for (StepId step = load.first;; step = (step + 1) % steps) {
      auto at = taken[static_cast<std::size_t>(load.slot)].begin() + step;
      REQUIRE(!*at);
      *at = true;
      if (step == load.last) break;
    }
  }
}

// A page a span, used at its first and last step and sometimes in between.
Sequence random_spans(Random& random, int steps, int spans, std::vector<Load>& loads) {
  Sequence sequence;
  sequence.steps.resize(static_cast<std::size_t>(steps));
  sequence.page_bytes.assign(static_cast<std::size_t>(spans), 1);
  for (PageId page = 0; page < spans; ++page) {
    const StepId first = pick(random, 0, steps - 1);
    const StepId length = pick(random, 0, random() % 4 == 0 ? steps - 1 : std::min(3, steps - 1));
    for (StepId n = 0; n <= length; ++n) {
      if (n != 0 && n != length && random() % 2 == 0) continue;
      sequence.steps[static_cast<std::size_t>((first + n) % steps)].pages.push_back(page);
    }
    loads.push_back({page, first, (first + length) % steps, kAnySlot});
  }
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return std::pair(a.first, a.page) < std::pair(b.first, b.page);
  });
  return sequence;
}

TEST_CASE("Spans of any length find slots, as few as overlap") {
  Random random(44);
  std::size_t split = 0;
  std::size_t all = 0;
  for (int i = 0; i < 1500; ++i) {
    const int steps = pick(random, 1, 30);
    std::vector<Load> loads;
    const Sequence sequence = random_spans(random, steps, pick(random, 1, 40), loads);
    const UseIndex index(sequence);
    const std::int32_t slots = most_overlapping(loads, steps) + pick(random, 0, 2);
    const std::size_t before = loads.size();
    CAPTURE(i);
    assign_slots(index, slots, loads);
    check_no_overlap(loads, steps, slots);
    split += loads.size() - before;
    all += before;
  }
  CHECK(split > 0);  // or this tests nothing
  CHECK(split < all / 20);
}

TEST_CASE("A sweep goes round evenly, where it wraps as well") {
  for (const int pages : {7, 8, 9, 330, 335, 336, 337}) {
    Sequence sequence = testing::sweep(std::vector<int>(static_cast<std::size_t>(pages), 1), 1);
    const UseIndex index(sequence);
    std::vector<Load> loads;
    for (PageId page = 0; page < pages; ++page) loads.push_back({page, page, page, kAnySlot});
    for (const std::int32_t slots : {1, 2, 7, 8}) {
      assign_slots(index, slots, loads);
      const int rounds = (pages + slots - 1) / slots;
      CAPTURE(pages);
      CAPTURE(slots);
      CHECK(least_distance(loads) == pages / rounds);
      check_no_overlap(loads, pages, slots);
    }
  }
}

TEST_CASE("A few long spans do not break the rounds of the others") {
  Sequence sequence = testing::sweep(std::vector<int>(400, 1), 1);
  std::vector<Load> loads;
  for (PageId page = 0; page < 400; ++page) loads.push_back({page, page, page, kAnySlot});
  for (const StepId first : {30, 130, 330}) {
    loads[static_cast<std::size_t>(first)].last = (first + 90) % 400;
    sequence.steps[static_cast<std::size_t>((first + 90) % 400)].pages.push_back(first);
  }
  const UseIndex index(sequence);
  assign_slots(index, 9, loads);
  check_no_overlap(loads, 400, 9);
  CHECK(loads.size() == 400);
  std::vector<Load> ring;
  for (const Load& load : loads) {
    if (load.first == load.last) ring.push_back(load);
  }
  CHECK(least_distance(ring) >= 7);
}

// CPU time, the least of a few runs, so that a busy machine does not matter.
double cpu_ms(const Sequence& sequence, std::int32_t slots) {
  ScheduleOptions options;
  options.slots = slots;
  double least = 1e9;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    REQUIRE(schedule(sequence, options).ok());
    least = std::min(least, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST_CASE("Planning takes milliseconds, and no square of the pages") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  constexpr double kSlower = 40;
#else
  constexpr double kSlower = 1;
#endif
  for (const bool share : {false, true}) {
    const Sequence small = testing::sweep(std::vector<int>(150, 7), 16 * kMiB, share);
    for (const std::int32_t slots : {20, 500, 850}) CHECK(cpu_ms(small, slots) < 3 * kSlower);
    const Sequence large = testing::sweep(std::vector<int>(2000, 10), 16 * kMiB, share);
    for (const std::int32_t slots : {100, 10'000}) CHECK(cpu_ms(large, slots) < 50 * kSlower);
  }
}

}  // namespace
}  // namespace penstock::policy
