// SPDX-License-Identifier: Apache-2.0
// check() must find every kind of fault: each is put into a valid plan, one at a time.
#include <functional>
#include <string>

#include "doctest/doctest.h"
#include "policy/planning/schedule.hpp"
#include "policy_sequences.hpp"

namespace penstock::policy {
namespace {

struct Case {
  Sequence sequence = testing::sweep({3, 3, 3, 3, 3}, 10);
  ScheduleOptions options{.slots = 8, .look_ahead = 1};
  Plan plan = schedule(sequence, options).value();
};

std::string fault(const std::function<void(Case&)>& spoil) {
  Case c;
  REQUIRE(check(c.sequence, c.options, c.plan).ok());
  REQUIRE(c.plan.kept.size() >= 2);
  REQUIRE(c.plan.loads.size() >= 4);
  spoil(c);
  const Status status = check(c.sequence, c.options, c.plan);
  CHECK(!status.ok());
  return status.message();
}

bool says(const std::string& message, const char* what) {
  return message.find(what) != std::string::npos;
}

TEST_CASE("A fault in what is kept") {
  CHECK(says(fault([](Case& c) { c.plan.kept[0].page = 15; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.kept[0].page = -1; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.kept[0].slot = 8; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.kept[0].slot = kAnySlot; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.kept[0].slot = c.plan.kept[1].slot; }), "twice"));
  CHECK(says(fault([](Case& c) { c.plan.kept[0].page = c.plan.kept[1].page; }), "twice"));
  CHECK(says(fault([](Case& c) { c.plan.kept.pop_back(); }), "missing at step"));
}

TEST_CASE("A fault in a load") {
  CHECK(says(fault([](Case& c) { c.plan.loads[0].slot = kAnySlot; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.loads[0].slot = 8; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.loads[0].last = 5; }), "out of range"));
  CHECK(says(fault([](Case& c) { c.plan.loads[0].slot = c.plan.kept[0].slot; }), "meets a kept"));
  CHECK(says(fault([](Case& c) { std::swap(c.plan.loads[0], c.plan.loads[1]); }), "out of order"));
  CHECK(says(fault([](Case& c) { c.plan.loads.pop_back(); }), "missing at step"));
  CHECK(says(fault([](Case& c) { c.plan.loads.back().first = c.plan.loads.back().last = 0; }),
             "out of order"));
  // The last load of the last step but one, moved to the last, where its slot is free.
  CHECK(says(fault([](Case& c) {
               for (std::size_t i = c.plan.loads.size() - 1; i-- > 0;) {
                 Load& load = c.plan.loads[i];
                 if (load.first == c.plan.loads[i + 1].first) continue;
                 load.first = load.last = c.plan.loads[i + 1].first;
                 return;
               }
             }),
             "not used"));
}

TEST_CASE("Spans that meet in a slot") {
  // The next load of the same slot starts in the step in which this one ends: that is too early.
  CHECK(says(fault([](Case& c) {
               for (std::size_t i = 1; i < c.plan.loads.size(); ++i) {
                 if (c.plan.loads[i].slot != c.plan.loads[0].slot) continue;
                 c.plan.loads[0].last = c.plan.loads[i].first;
                 return;
               }
             }),
             "meets"));
  // A span that wraps meets the first of the next iteration.
  CHECK(says(fault([](Case& c) {
               Load& load = c.plan.loads.back();
               load.slot = c.plan.loads[0].slot;
               load.last = c.plan.loads[0].first;
             }),
             "meets"));
}

TEST_CASE("A fault in the totals") {
  CHECK(says(fault([](Case& c) { ++c.plan.bytes_in; }), "it says"));
  CHECK(says(fault([](Case& c) { --c.plan.stream_slots; }), "it says"));
  CHECK(says(fault([](Case& c) { c.options.slots = 7; }), "out of range"));
}

TEST_CASE("A sequence that is not valid has no valid plan") {
  Case c;
  c.sequence.steps[0].pages[0] = 99;
  CHECK(check(c.sequence, c.options, c.plan).code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::policy
