// SPDX-License-Identifier: Apache-2.0
// policy::keep_prefixes against a plain statement of its guarantees, on many random sequences.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "conformance_bench.hpp"
#include "policy/planning/prefixes.hpp"

namespace penstock::policy {
namespace {

Bytes total(const Sequence& sequence) {
  Bytes all = 0;
  for (const Bytes size : sequence.page_bytes) all += size;
  return all;
}

// The most that has to be on the device at any step, by the words of the header.
Bytes peak(const Sequence& sequence, const Prefixes& prefixes) {
  Bytes kept = 0;
  for (const Bytes bytes : prefixes.kept) kept += bytes;
  Bytes most = kept;
  const std::size_t steps = sequence.steps.size();
  for (std::size_t step = 0; step < steps; ++step) {
    std::set<PageId> there(sequence.steps[step].pages.begin(), sequence.steps[step].pages.end());
    std::int32_t left = prefixes.look_ahead;
    for (std::size_t ahead = 1; ahead < steps; ++ahead) {
      for (const PageId id : sequence.steps[(step + ahead) % steps].pages) {
        const auto index = static_cast<std::size_t>(id);
        const bool streams = prefixes.kept[index] < sequence.page_bytes[index];
        if (left > 0 && streams && there.insert(id).second) --left;
      }
    }
    Bytes bytes = kept;
    for (const PageId id : there) {
      const auto index = static_cast<std::size_t>(id);
      bytes += sequence.page_bytes[index] - prefixes.kept[index];
    }
    most = std::max(most, bytes);
  }
  return most;
}

Sequence sweep(std::int32_t groups, Bytes size) {
  Sequence sequence;
  for (PageId id = 0; id < groups; ++id) {
    sequence.page_bytes.push_back(size);
    sequence.steps.push_back({.pages = {id}});
  }
  return sequence;
}

}  // namespace

TEST_CASE("prefixes: the guarantees hold for random sequences, budgets and look-aheads") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int refused = 0;
  int reduced = 0;
  int partial = 0;
  for (int round = 0; round < 600; ++round) {
    Sequence sequence;
    const int groups = pick(1, 12);
    for (int id = 0; id < groups; ++id) {
      sequence.page_bytes.push_back(static_cast<Bytes>(pick(1, 20)) * 4);
    }
    for (int step = pick(1, 16); step > 0; --step) {
      std::set<PageId> pages{pick(0, groups - 1)};
      if (pick(0, 3) == 0) pages.insert(pick(0, groups - 1));
      sequence.steps.push_back({{pages.begin(), pages.end()}});
    }
    const PrefixOptions options{static_cast<Bytes>(pick(1, 300)), 4, pick(0, 4)};
    const Result<Prefixes> found = keep_prefixes(sequence, options);
    Bytes largest_step = 0;
    std::set<PageId> used;
    for (const Step& step : sequence.steps) {
      Bytes bytes = 0;
      for (const PageId id : step.pages) bytes += sequence.page_bytes[static_cast<std::size_t>(id)];
      largest_step = std::max(largest_step, bytes);
      used.insert(step.pages.begin(), step.pages.end());
    }
    if (largest_step > options.budget) {
      PENSTOCK_CHECK_CODE(found.status(), Code::kOutOfMemory);
      ++refused;
      continue;
    }
    PENSTOCK_REQUIRE_OK(found.status());
    const Prefixes& prefixes = found.value();
    CHECK(prefixes.look_ahead <= options.look_ahead);
    reduced += prefixes.look_ahead < options.look_ahead;
    CHECK(peak(sequence, prefixes) <= options.budget);
    Bytes streamed = 0;
    for (PageId id = 0; id < groups; ++id) {
      const auto index = static_cast<std::size_t>(id);
      CHECK(prefixes.kept[index] <= sequence.page_bytes[index]);
      CHECK(prefixes.kept[index] % options.granularity == 0);
      partial += prefixes.kept[index] > 0 && prefixes.kept[index] < sequence.page_bytes[index];
      if (used.count(id) > 0) streamed += sequence.page_bytes[index] - prefixes.kept[index];
    }
    CHECK(prefixes.bytes_in == streamed);
    if (total(sequence) <= options.budget) CHECK(streamed == 0);
  }
  CHECK(refused > 20);
  CHECK(reduced > 20);
  CHECK(partial > 100);
}

TEST_CASE("prefixes: a sweep over equal groups streams no more than the look-ahead makes it") {
  const Bytes size = 400 * kMiB;
  const Bytes grain = 2 * kMiB;
  const std::int32_t groups = 34;
  for (const std::int32_t ahead : {1, 2, 4}) {
    for (const Bytes budget : {2 * kGiB, 4 * kGiB, 8 * kGiB, 12 * kGiB}) {
      const auto found = keep_prefixes(sweep(groups, size), {budget, grain, ahead});
      PENSTOCK_REQUIRE_OK(found.status());
      REQUIRE(found.value().look_ahead == ahead);
      // n groups stream parts of t, 1 + ahead of them on the device: n (size - t) + (1 + ahead) t
      // is the budget.
      const double part = static_cast<double>(groups * size - budget) / (groups - 1 - ahead);
      const double streamed = static_cast<double>(found.value().bytes_in);
      CHECK(streamed >= part * groups);
      CHECK(streamed <= part * groups + static_cast<double>((2 + ahead) * grain) + 1);
      const auto [least, most] =
          std::minmax_element(found.value().kept.begin(), found.value().kept.end());
      CHECK(*most - *least <= grain);  // evenly spread
    }
  }
}

TEST_CASE("prefixes: arguments") {
  PENSTOCK_CHECK_CODE(keep_prefixes(sweep(3, 6), {100, 4, 1}).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(keep_prefixes(sweep(3, 8), {100, 0, 1}).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(keep_prefixes(sweep(3, 8), {100, 4, -1}).status(), Code::kInvalidArgument);
  Sequence twice = sweep(2, 8);
  twice.steps[0].pages = {1, 1};
  PENSTOCK_CHECK_CODE(keep_prefixes(twice, {100, 4, 1}).status(), Code::kInvalidArgument);
  const auto nothing = keep_prefixes({}, {100, 4, 1});
  PENSTOCK_CHECK_OK(nothing.status());
  CHECK(nothing.value().kept.empty());
}

TEST_CASE("prefixes: a group that no step uses stays only where everything does") {
  Sequence sequence = sweep(3, 8);
  sequence.page_bytes.push_back(8);
  const auto tight = keep_prefixes(sequence, {24, 4, 1});
  PENSTOCK_REQUIRE_OK(tight.status());
  CHECK(tight.value().kept == std::vector<Bytes>{8, 8, 8, 0});
  const auto ample = keep_prefixes(sequence, {32, 4, 1});
  PENSTOCK_REQUIRE_OK(ample.status());
  CHECK(ample.value().kept == std::vector<Bytes>{8, 8, 8, 8});
}

}  // namespace penstock::policy
