// SPDX-License-Identifier: Apache-2.0
// Replays as a whole: figures that follow from the events, under every allocator; the clock; a
// capacity that does not suffice.
#include <algorithm>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "lab/replay.hpp"
#include "recorded.hpp"

namespace penstock::engine {
namespace {

using testing::Event;
using testing::Recorded;

// A clock that shows how often it was read: a nanosecond more each time.
std::int64_t readings = 0;
std::int64_t count_readings() { return ++readings; }

constexpr ReplayAllocator kAll[] = {ReplayAllocator::kStitch, ReplayAllocator::kNative,
                                    ReplayAllocator::kExpandable};

ReplayOptions with(ReplayAllocator allocator, Bytes capacity = kTiB, std::size_t points = 0) {
  ReplayOptions options;
  options.subject.allocator = allocator;
  options.subject.capacity = capacity;
  options.points = points;
  options.now_ns = &count_readings;
  return options;
}

ReplayResult replayed(const std::vector<Event>& events, const ReplayOptions& options) {
  const Recorded recorded(events);
  const auto result = replay(recorded.trace(), options);
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return result.value();
}

TEST_CASE("replay: figures follow from the events") {
  const std::vector<Event> events = {
      {0, 1, 30 * kMiB, 1000}, {0, 2, 15 * kMiB, 2000, 1}, {1, 1, 0, 3000},
      {2, 1, 0, 4000},         {0, 3, 10 * kMiB, 5000},    {2, 2, 0, 11000},
  };
  for (const ReplayAllocator allocator : kAll) {
    CAPTURE(static_cast<int>(allocator));
    const ReplayResult result = replayed(events, with(allocator, kTiB, 10));
    CHECK(result.events == 6);
    CHECK(result.allocations == 3);
    CHECK(result.frees == 2);
    CHECK(result.failed_event == ReplayResult::kNone);
    CHECK(result.peak_requested == 45 * kMiB);
    CHECK(result.peak_reserved >= 45 * kMiB);
    CHECK(result.peak_reserved <= 60 * kMiB);
    CHECK(result.trace_ms == doctest::Approx(10));
    CHECK(result.modelled_driver_ms > 0);
    CHECK(result.modelled_driver_ms_second_half == 0);  // the last is served by what is free
    REQUIRE(result.curve.size() == 10);
    CHECK(result.curve.back().time_us == 10000);
    CHECK(result.curve.back().reserved == result.peak_reserved);
    CHECK(result.curve.front().time_us == 1000);
    CHECK(result.curve.front().requested == 30 * kMiB);
  }
}

TEST_CASE("replay: what is mapped in the second half of the time counts there") {
  const std::vector<Event> events = {
      {0, 1, 64 * kMiB, 0}, {0, 2, 64 * kMiB, 5000}, {2, 1, 0, 10000}};
  ReplayOptions options = with(ReplayAllocator::kNative);
  options.subject.costs = {.create_us = 1000, .map_us = 0, .set_access_us = 0, .unmap_us = 0};
  const ReplayResult result = replayed(events, options);
  CHECK(result.modelled_driver_ms == doctest::Approx(2));
  CHECK(result.modelled_driver_ms_second_half == doctest::Approx(1));
  CHECK(result.map_calls == 2);
}

TEST_CASE("replay: the clock runs between stops, and the time is that of a call") {
  std::vector<Event> events;
  for (std::uint32_t i = 0; i < 500; ++i) {
    events.push_back({0, i, 1000, i});
    events.push_back({2, i, 0, i});
  }
  readings = 0;
  const ReplayResult result = replayed(events, with(ReplayAllocator::kNative, kTiB, 20));
  CHECK(readings == 2 * 21);  // 20 points and half time; a reading before and after each
  CHECK(result.ns_per_op == doctest::Approx(21.0 / 1000));
}

TEST_CASE("replay: ends where the capacity does not suffice") {
  const std::vector<Event> events = {
      {0, 1, 40 * kMiB, 0},    {1, 1, 0, 1000},        {0, 2, 8 * kMiB, 2000},
      {0, 3, 40 * kMiB, 3000}, {0, 4, 1 * kMiB, 4000}, {2, 2, 0, 5000},
  };
  for (const ReplayAllocator allocator : kAll) {
    CAPTURE(static_cast<int>(allocator));
    const ReplayResult result = replayed(events, with(allocator, 64 * kMiB, 5));
    CHECK(result.failed_event == 3);
    CHECK(result.peak_requested == 48 * kMiB);
    CHECK(result.peak_reserved <= 64 * kMiB);
    CHECK(result.allocations == 2);
    CHECK(result.frees == 0);
  }
}

TEST_CASE("replay: everything fits again once it is free, under every allocator") {
  for (const ReplayAllocator allocator : kAll) {
    CAPTURE(static_cast<int>(allocator));
    std::mt19937 random(5);
    std::vector<Event> events;
    std::uint64_t time = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::uint32_t> live;
      for (std::uint32_t i = 0; i < 60; ++i) {
        const Bytes bytes = random() % 2 == 0 ? random() % (8 * kMiB) : random() % 4000;
        events.push_back({0, i, bytes, ++time});
        live.push_back(i);
      }
      std::shuffle(live.begin(), live.end(), random);
      for (const std::uint32_t id : live) events.push_back({2, id, 0, ++time});
    }
    const ReplayResult result = replayed(events, with(allocator, kGiB));
    CHECK(result.failed_event == ReplayResult::kNone);
    CHECK(result.frees == 1200);
    CHECK(result.peak_reserved >= result.peak_requested);
  }
}

TEST_CASE("replay: what makes no sense is refused before anything runs") {
  const Recorded recorded({{2, 1, 0}});
  CHECK(replay(recorded.trace(), with(ReplayAllocator::kStitch)).status().code() ==
        Code::kInvalidArgument);
  const Recorded good({{0, 1, 8}});
  ReplayOptions options = with(ReplayAllocator::kStitch);
  options.subject.packing.smallest_chunk = 3 * kMiB;
  CHECK(replay(good.trace(), options).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::engine
