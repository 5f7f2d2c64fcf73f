// SPDX-License-Identifier: Apache-2.0
// The time model on plans small enough to reckon by hand, and the yardstick on real shapes.
#include <algorithm>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "policy/schedule.hpp"
#include "policy/time_model.hpp"
#include "policy_sequences.hpp"

namespace penstock::policy {
namespace {

using testing::gpt3_6b7;

constexpr Link kMeasured{54.6e6, 0};  // page-locked copies of 128 MiB

double compute_of(const Sequence& sequence) {
  return std::accumulate(sequence.steps.begin(), sequence.steps.end(), 0.0,
                         [](double sum, const Step& step) { return sum + step.compute_ms; });
}

TEST_CASE("One slot for two pages: every copy waits for the step before it") {
  Sequence sequence = testing::sweep({1, 1}, 10, 6);  // 3 ms of compute a step
  Plan plan;
  plan.loads = {{0, 0, 0, 0}, {1, 1, 1, 0}};
  plan.stream_slots = 1;
  plan.bytes_in = 20;
  const Timing timing = simulate_plan(sequence, plan, {5, 0});  // 2 ms a copy
  CHECK(timing.step_ms == doctest::Approx(2 * (2 + 3)));
  CHECK(timing.stall_ms == doctest::Approx(4));
  CHECK(timing.bytes_in == 20);
  CHECK(timing.link_busy == doctest::Approx(0.4));
  CHECK(simulate_plan(sequence, plan, {5, 1}).step_ms == doctest::Approx(2 * (3 + 3)));
}

TEST_CASE("Two slots for four pages: copies hide behind compute, or compute behind copies") {
  const Plan plan{{}, {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 0}, {3, 3, 3, 1}}, 2, 40, {}};
  const Timing hidden = simulate_plan(testing::sweep({1, 1, 1, 1}, 10, 12), plan, {5, 0});
  CHECK(hidden.step_ms == doctest::Approx(12));
  CHECK(hidden.stall_ms == doctest::Approx(0));
  CHECK(hidden.link_busy == doctest::Approx(8.0 / 12));
  const Timing bound = simulate_plan(testing::sweep({1, 1, 1, 1}, 10, 4), plan, {5, 0});
  CHECK(bound.step_ms == doctest::Approx(8));
  CHECK(bound.link_busy == doctest::Approx(1));
}

TEST_CASE("A span that covers several steps holds its slot through all of them") {
  Sequence sequence{{10, 10, 10}, {{{0}, 1}, {{0, 1}, 1}, {{2}, 1}}};
  // Page 0 for steps 0 and 1, then page 2 in its slot; page 1 beside it.
  const Plan plan{{}, {{0, 0, 1, 0}, {1, 1, 1, 1}, {2, 2, 2, 0}}, 2, 30, {}};
  // From the end of step 1: page 2 is copied, step 2 runs, then page 0 and page 1 are copied one
  // after the other; step 0 runs during the second copy, and step 1 after it.
  CHECK(simulate_plan(sequence, plan, {5, 0}).step_ms == doctest::Approx(2 + 1 + 2 + 2 + 1));
}

TEST_CASE("On demand nothing overlaps") {
  const Sequence sequence = testing::sweep({1, 1, 1}, 10, 6);
  const auto lru = simulate_on_demand(sequence, 2, Replacement::kLru, {5, 0.5});
  REQUIRE(lru.ok());
  CHECK(lru.value().step_ms == doctest::Approx(6 + 3 * 2.5));
  CHECK(lru.value().stall_ms == doctest::Approx(7.5));
  const auto min = simulate_on_demand(sequence, 2, Replacement::kBelady, {5, 0.5});
  REQUIRE(min.ok());
  CHECK(min.value().step_ms == doctest::Approx(6 + 1.5 * 2.5));
  CHECK(min.value().bytes_in == doctest::Approx(15));
  CHECK(simulate_on_demand(sequence, 0, Replacement::kLru, {5, 0}).status().code() ==
        Code::kOutOfMemory);
}

TEST_CASE("The ideal is compute, or what the pool cannot hold") {
  Sequence sequence = testing::sweep({2, 2}, 10, 3);
  CHECK(ideal_ms(sequence, 4, {5, 0}) == doctest::Approx(3));
  CHECK(ideal_ms(sequence, 2, {5, 0}) == doctest::Approx(4));
  sequence.page_bytes = {10, 1, 10, 10};
  CHECK(ideal_ms(sequence, 3, {1, 0}) == doctest::Approx(3));
  CHECK(ideal_ms(sequence, 2, {1, 0}) == doctest::Approx(11));
  sequence.page_bytes.push_back(1000);  // not used by any step
  CHECK(ideal_ms(sequence, 2, {1, 0}) == doctest::Approx(11));
}

TEST_CASE("No plan beats compute, or the link") {
  testing::Random random(31);
  for (int i = 0; i < 500; ++i) {
    const Sequence sequence = testing::any_sequence(random);
    if (sequence.steps.empty()) continue;
    ScheduleOptions options;
    options.slots = smallest_pool(sequence) + testing::pick(random, 0, 8);
    const auto plan = schedule(sequence, options);
    REQUIRE(plan.ok());
    const Link link{100.0, 0.1};
    const Timing timing = simulate_plan(sequence, plan.value(), link);
    const double compute = compute_of(sequence);
    const double copies = static_cast<double>(plan.value().bytes_in) / link.bytes_per_ms +
                          static_cast<double>(plan.value().loads.size()) * link.latency_ms;
    CAPTURE(i);
    REQUIRE(timing.step_ms >= compute - 1e-6);
    REQUIRE(timing.step_ms >= copies - 1e-6);
    REQUIRE(timing.step_ms <= compute + copies + 1e-6);
    REQUIRE(timing.stall_ms == doctest::Approx(timing.step_ms - compute));
    REQUIRE(timing.link_busy * timing.step_ms == doctest::Approx(copies));
  }
}

// The yardstick of the project: within a few per cent of the ideal, which loses no slot to
// transfer.
void check_ratio(const Sequence& sequence, std::int32_t slots, bool times, double most) {
  ScheduleOptions options;
  options.slots = slots;
  if (times) options.link = kMeasured;
  const auto plan = schedule(sequence, options);
  REQUIRE(plan.ok());
  REQUIRE(check(sequence, options, plan.value()).ok());
  const double ratio = simulate_plan(sequence, plan.value(), kMeasured).step_ms /
                       ideal_ms(sequence, slots, kMeasured);
  CAPTURE(slots);
  CAPTURE(times);
  CHECK(ratio >= 1 - 1e-9);
  CHECK(ratio <= most);
}

TEST_CASE("GPT-3 6.7B on a forward of 26 ms stays within a few per cent of the ideal") {
  for (const bool share : {false, true}) {
    const Sequence sequence = gpt3_6b7(26, share);
    CHECK(std::abs(std::ssize(sequence.page_bytes) - 818) <= 1);
    for (const bool times : {false, true}) {
      check_ratio(sequence, 26, times, 1.04);  // little more than the largest step, of 25
      check_ratio(sequence, 105, times, 1.02);
      check_ratio(sequence, 230, times, 1.02);
      check_ratio(sequence, 490, times, 1.025);
      check_ratio(sequence, 600, times, 1.03);
      check_ratio(sequence, 720, times, 1.065);  // copies take as long as compute
      check_ratio(sequence, 760, times, 1.0 + 1e-9);
    }
  }
}

TEST_CASE("Where compute hides little, known times buy back the look-ahead") {
  for (const bool share : {false, true}) {
    const Sequence sequence = gpt3_6b7(5, share);
    for (const std::int32_t slots : {105, 230, 490, 600}) check_ratio(sequence, slots, true, 1.02);
    check_ratio(sequence, 700, true, 1.025);
    check_ratio(sequence, 750, true, 1.04);
  }
}

TEST_CASE("The plan is several times faster than what managed memory does") {
  const Sequence sequence = gpt3_6b7();
  ScheduleOptions options;
  options.slots = 490;
  const auto plan = schedule(sequence, options);
  REQUIRE(plan.ok());
  const double ours = simulate_plan(sequence, plan.value(), kMeasured).step_ms;
  CHECK(simulate_on_demand(sequence, 490, Replacement::kLru, kMeasured).value().step_ms >
        2.5 * ours);
  CHECK(simulate_on_demand(sequence, 490, Replacement::kFifo, kMeasured).value().step_ms >
        2.5 * ours);
  CHECK(simulate_on_demand(sequence, 490, Replacement::kBelady, kMeasured).value().step_ms >
        1.2 * ours);
}

TEST_CASE("There and back: slots to copy ahead are worth more than the last loads") {
  Sequence sequence = gpt3_6b7();
  const std::vector<Step> forward = sequence.steps;
  sequence.steps.insert(sequence.steps.end(), forward.rbegin(), forward.rend());
  ScheduleOptions options;
  options.slots = 490;
  const auto fewest = schedule(sequence, options);
  options.may_exceed_lru = true;
  const auto fastest = schedule(sequence, options);
  REQUIRE(fewest.ok());
  REQUIRE(fastest.ok());
  CHECK(fewest.value().loads.size() == 2 * (818 - 490));
  CHECK(fastest.value().loads.size() <= 1.02 * 2 * (818 - 490));
  const double bound = 2 * (818 - 490) * 16.0 * kMiB / kMeasured.bytes_per_ms;
  CHECK(simulate_plan(sequence, fastest.value(), kMeasured).step_ms <= 1.03 * bound);
  CHECK(simulate_plan(sequence, fewest.value(), kMeasured).step_ms <= 1.13 * bound);
}

}  // namespace
}  // namespace penstock::policy
