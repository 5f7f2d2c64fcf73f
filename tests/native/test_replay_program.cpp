// SPDX-License-Identifier: Apache-2.0
// Traces made ready for a replay: what is refused, what becomes of ids, where the stops are.
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "lab/replay_program.hpp"
#include "recorded.hpp"

namespace penstock::engine {
namespace {

using testing::Event;
using testing::Recorded;

Result<ReplayProgram> made(const std::vector<Event>& events, std::size_t stops = 0) {
  const Recorded recorded(events);
  return make_replay_program(recorded.trace(), stops);
}

std::string refusal(const std::vector<Event>& events) {
  const auto program = made(events);
  REQUIRE_FALSE(program.ok());
  CHECK(program.status().code() == Code::kInvalidArgument);
  return program.status().message();
}

TEST_CASE("replay program: refuses what cannot have happened, and says where") {
  CHECK(refusal({}) == "a trace without events");
  CHECK(refusal({{0, 5, 8}, {0, 5, 8}}) ==
        "event 1 (op 0, id 5) allocates what is allocated already");
  CHECK(refusal({{0, 5, 8}, {2, 6}}) == "event 1 (op 2, id 6) frees what is not allocated");
  CHECK(refusal({{1, 6}}) == "event 0 (op 1, id 6) frees what is not allocated");
  CHECK(refusal({{0, 5, 8}, {2, 5}, {2, 5}}) == "event 2 (op 2, id 5) frees what is not allocated");
  CHECK(refusal({{3, 1}}) == "event 0 (op 3, id 1) has the unknown op 3");
  CHECK(refusal({{0, 1, 8, 10}, {0, 2, 8, 9}}) == "event 1 (op 0, id 2) is in the past");
  CHECK(refusal({{0, 1, ~std::uint64_t{0}}}) ==
        "event 0 (op 0, id 1) allocates more than an address can hold");
  CHECK(refusal({{0, 1, 8, 0, 1 << 16}}) == "event 0 (op 0, id 1) is on a stream beyond 65535");
  const Recorded recorded({{0, 1, 8}});
  Trace trace = recorded.trace();
  trace.bytes = trace.bytes.first(0);
  CHECK_FALSE(make_replay_program(trace, 0).ok());
}

TEST_CASE("replay program: a requested free does nothing, and ids may come again") {
  const std::vector<Event> events = {{0, 7, 100, 10}, {1, 7, 0, 11},      {0, 8, 50, 12, 2},
                                     {2, 7, 0, 13},   {0, 7, 200, 14, 1}, {2, 8, 0, 15}};
  const auto program = made(events);
  REQUIRE(program.ok());
  const ReplayProgram& found = program.value();
  REQUIRE(found.ops.size() == 5);
  CHECK(found.slots == 2);
  CHECK(found.streams == 3);
  CHECK(found.duration_us == 5);
  CHECK(found.ops[0].bytes == 100);
  CHECK(found.ops[1].stream == 2);
  CHECK(found.ops[2].stream == ReplayOp::kFree);
  CHECK(found.ops[2].slot == found.ops[0].slot);
  CHECK(found.ops[3].slot == found.ops[0].slot);  // the slot that has just become free
  CHECK(found.ops[4].slot == found.ops[1].slot);
  const Recorded recorded(events);
  const std::vector<std::size_t> expected = {0, 2, 3, 4, 5, 6};
  for (std::size_t op = 0; op < expected.size(); ++op) {
    CHECK(event_of_op(recorded.trace(), op) == expected[op]);
  }
}

TEST_CASE("replay program: stops lie evenly in time, with the most that was requested between") {
  std::vector<Event> events;
  for (std::uint32_t i = 0; i < 100; ++i) {
    events.push_back({0, i, 1000 + i, 10 * i});
    events.push_back({2, i, 0, 10 * i});
  }
  const auto program = made(events, 9);
  REQUIRE(program.ok());
  const auto& stops = program.value().stops;
  REQUIRE(stops.size() == 10);  // and one at half time
  std::size_t halves = 0;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (i > 0) {
      CHECK(stops[i].at >= stops[i - 1].at);
      CHECK(stops[i].time_us >= stops[i - 1].time_us);
    }
    CHECK(stops[i].requested <= 1099);
    CHECK(stops[i].requested >= 1000);
    if (stops[i].second_half_here) {
      ++halves;
      CHECK(stops[i].at == 100);  // events from 495 us on: the 50th of 100, at 500 us
    }
  }
  CHECK(halves == 1);
  CHECK(stops.back().at == 200);
  CHECK(stops.back().time_us == 990);
  CHECK(stops.back().requested == 1099);
}

TEST_CASE("replay program: the most between two stops begins with what was there") {
  const auto program = made({{0, 1, 1000, 0}, {2, 1, 0, 60}, {0, 2, 10, 70}, {2, 2, 0, 100}}, 2);
  REQUIRE(program.ok());
  std::vector<Bytes> most;
  for (const ReplayStop& stop : program.value().stops) most.push_back(stop.requested);
  CHECK(most == std::vector<Bytes>{1000, 1000, 1000});  // half time, the first of two, the last
}

TEST_CASE("replay program: events at one time are one half") {
  const auto program = made({{0, 1, 8}, {0, 2, 8}}, 5);
  REQUIRE(program.ok());
  CHECK(program.value().duration_us == 0);
  CHECK(program.value().stops.back().at == 2);
}

}  // namespace
}  // namespace penstock::engine
