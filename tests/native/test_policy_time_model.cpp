// SPDX-License-Identifier: Apache-2.0
// The time model on plans small enough to reckon by hand, and the yardstick on real shapes.
#include <algorithm>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "policy/planning/schedule.hpp"
#include "policy/planning/time_model.hpp"
#include "policy_on_demand.hpp"
#include "policy_sequences.hpp"

namespace penstock::policy {
namespace {

using testing::compute_times;
using testing::Evict;
using testing::gpt3_6b7;
using testing::on_demand;
using testing::pick;
using testing::Traffic;

constexpr double kMeasured = 54.6e6;  // bytes/ms of page-locked copies of 128 MiB

double sum(const std::vector<double>& times) {
  return std::accumulate(times.begin(), times.end(), 0.0);
}

TEST_CASE("One slot for two pages: every copy waits for the step before it") {
  const Plan plan{{}, {{0, 0, 0, 0}, {1, 1, 1, 0}}, 1, 20};
  // 2 ms a copy, 3 ms of compute a step
  CHECK(simulate_plan(testing::sweep({1, 1}, 10), {3, 3}, plan, 5).step_ms ==
        doctest::Approx(2 * (2 + 3)));
}

TEST_CASE("Two slots for four pages: copies hide behind compute, or compute behind copies") {
  const Plan plan{{}, {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 0}, {3, 3, 3, 1}}, 2, 40};
  const Sequence sequence = testing::sweep({1, 1, 1, 1}, 10);
  CHECK(simulate_plan(sequence, {3, 3, 3, 3}, plan, 5).step_ms == doctest::Approx(12));
  CHECK(simulate_plan(sequence, {1, 1, 1, 1}, plan, 5).step_ms == doctest::Approx(8));
}

TEST_CASE("A span that covers several steps holds its slot through all of them") {
  const Sequence sequence{{10, 10, 10}, {{{0}}, {{0, 1}}, {{2}}}};
  // Page 0 for steps 0 and 1, then page 2 in its slot; page 1 beside it.
  const Plan plan{{}, {{0, 0, 1, 0}, {1, 1, 1, 1}, {2, 2, 2, 0}}, 2, 30};
  // From the end of step 1: page 2 is copied, step 2 runs, then page 0 and page 1 are copied one
  // after the other; step 0 runs during the second copy, and step 1 after it.
  CHECK(simulate_plan(sequence, {1, 1, 1}, plan, 5).step_ms == doctest::Approx(2 + 1 + 2 + 2 + 1));
}

// The yardstick, max(T, (M - S) / B): all compute, or the bytes that the pool cannot hold, at the
// link's speed; the ideal loses no slot to transfer.  All pages are of one size.
double ideal_ms(const Sequence& sequence, std::int32_t slots, double compute_ms) {
  const auto rest = std::max<std::int64_t>(0, std::ssize(sequence.page_bytes) - slots);
  const Bytes page = sequence.page_bytes.front();
  return std::max(compute_ms, static_cast<double>(rest) * static_cast<double>(page) / kMeasured);
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
    std::vector<double> times = compute_times(sequence, pick(random, 0, 50));
    for (double& ms : times) ms += pick(random, 0, 10) * 0.1;
    const double ms = simulate_plan(sequence, times, plan.value(), 100).step_ms;
    const double compute = sum(times);
    const double copies = static_cast<double>(plan.value().bytes_in) / 100;
    CAPTURE(i);
    REQUIRE(ms >= compute - 1e-6);
    REQUIRE(ms >= copies - 1e-6);
    REQUIRE(ms <= compute + copies + 1e-6);
  }
}

// The yardstick of the project: within a few per cent of the ideal, which loses no slot to
// transfer.
void check_ratio(const Sequence& sequence, std::int32_t slots, double compute_ms, double most) {
  ScheduleOptions options;
  options.slots = slots;
  const auto plan = schedule(sequence, options);
  REQUIRE(plan.ok());
  REQUIRE(check(sequence, options, plan.value()).ok());
  const std::vector<double> times = compute_times(sequence, compute_ms);
  const double ratio = simulate_plan(sequence, times, plan.value(), kMeasured).step_ms /
                       ideal_ms(sequence, slots, compute_ms);
  CAPTURE(slots);
  CHECK(ratio >= 1 - 1e-9);
  CHECK(ratio <= most);
}

TEST_CASE("GPT-3 6.7B on a forward of 26 ms stays within a few per cent of the ideal") {
  for (const bool share : {false, true}) {
    const Sequence sequence = gpt3_6b7(share);
    CHECK(std::abs(std::ssize(sequence.page_bytes) - 818) <= 1);
    check_ratio(sequence, 26, 26, 1.04);  // little more than the largest step, of 25
    check_ratio(sequence, 105, 26, 1.02);
    check_ratio(sequence, 230, 26, 1.02);
    check_ratio(sequence, 490, 26, 1.025);
    check_ratio(sequence, 600, 26, 1.03);
    check_ratio(sequence, 720, 26, 1.065);  // copies take as long as compute
    check_ratio(sequence, 760, 26, 1.0 + 1e-9);
  }
}

TEST_CASE("The plan is several times faster than what managed memory does") {
  const Sequence sequence = gpt3_6b7();
  ScheduleOptions options;
  options.slots = 490;
  const auto plan = schedule(sequence, options);
  REQUIRE(plan.ok());
  const std::vector<double> times = compute_times(sequence, 26);
  const double ours = simulate_plan(sequence, times, plan.value(), kMeasured).step_ms;
  const auto on_demand_ms = [&](Evict which) {  // copies, and then the step
    double bytes = 0;
    const std::vector<Traffic> traffic = on_demand(sequence, 490, which, 8);
    for (std::size_t i = 4; i < 8; ++i) bytes += static_cast<double>(traffic[i].bytes_in) / 4;
    return sum(times) + bytes / kMeasured;
  };
  CHECK(on_demand_ms(Evict::kLru) > 2.5 * ours);
  CHECK(on_demand_ms(Evict::kFifo) > 2.5 * ours);
  CHECK(on_demand_ms(Evict::kBelady) > 1.2 * ours);
}

TEST_CASE("There and back: the loads of LRU, and near the link's speed") {
  Sequence sequence = gpt3_6b7();
  const std::vector<Step> forward = sequence.steps;
  sequence.steps.insert(sequence.steps.end(), forward.rbegin(), forward.rend());
  ScheduleOptions options;
  options.slots = 490;
  const auto fewest = schedule(sequence, options);
  REQUIRE(fewest.ok());
  CHECK(fewest.value().loads.size() == 2 * (818 - 490));
  const double bound = 2 * (818 - 490) * 16.0 * kMiB / kMeasured;
  const std::vector<double> times = compute_times(sequence, 2 * 26);
  CHECK(simulate_plan(sequence, times, fewest.value(), kMeasured).step_ms <= 1.13 * bound);
}

}  // namespace
}  // namespace penstock::policy
