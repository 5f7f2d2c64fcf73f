// SPDX-License-Identifier: Apache-2.0
// Simulations of recorded programs against what theory says of them.
#include <random>
#include <string>
#include <utility>

#include "doctest/doctest.h"
#include "lab/simulate.hpp"
#include "work_records.hpp"

namespace penstock::testing {
namespace {

using engine::SimulatedStep;
using engine::SimulateOptions;
using engine::SimulatePolicy;
using engine::SimulateResult;

constexpr Bytes kPage = 2 * kMiB;

SimulateResult run(const WorkRecords& program, const SimulateOptions& options) {
  auto result = engine::simulate(program.records, options);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return std::move(result).value();
}

// The steps after the program has been learned: the second half.
std::vector<SimulatedStep> steady(const SimulateResult& result) {
  return {result.steps.begin() + static_cast<std::ptrdiff_t>(result.steps.size() / 2),
          result.steps.end()};
}

double hit_ratio(const std::vector<SimulatedStep>& steps) {
  std::uint64_t uses = 0;
  std::uint64_t loads = 0;
  for (const SimulatedStep& step : steps) {
    uses += step.page_uses;
    loads += step.page_loads;
  }
  return 1.0 - static_cast<double>(loads) / static_cast<double>(uses);
}

double mean_ms(const std::vector<SimulatedStep>& steps) {
  double sum = 0;
  for (const SimulatedStep& step : steps) sum += step.ms;
  return sum / static_cast<double>(steps.size());
}

TEST_CASE("simulate: of a cyclic sweep LRU and FIFO hit nothing, Belady what it must") {
  constexpr int kPages = 60;
  constexpr int kSlots = 40;
  const WorkRecords program = sweep(kPages, kPage, 60);
  for (const SimulatePolicy policy : {SimulatePolicy::kLru, SimulatePolicy::kFifo}) {
    const SimulateResult result = run(program, {.policy = policy, .budget = kSlots * kPage});
    REQUIRE(result.steps.size() == 60);
    for (const SimulatedStep& step : steady(result)) {
      CHECK(step.page_uses == kPages);
      CHECK(step.page_loads == kPages);
      CHECK(step.bytes_in == kPages * kPage);
      CHECK(step.bytes_out == 0);  // nobody changes them
    }
  }
  const SimulateResult best =
      run(program, {.policy = SimulatePolicy::kBelady, .budget = kSlots * kPage});
  // One place is always that of the page in use, of which the next use is farthest.
  CHECK(hit_ratio(steady(best)) ==
        doctest::Approx(double(kSlots - 1) / (kPages - 1)).epsilon(0.02));
}

TEST_CASE("simulate: Penstock's engine learns the sweep and comes near Belady, and the link") {
  constexpr int kPages = 300;
  constexpr int kSlots = 200;
  const WorkRecords program = sweep(kPages, kPage, 40, 8);
  SimulateOptions options{.budget = kSlots * kPage, .page_bytes = kPage};
  options.copy_call_us = options.digest_call_us = 0;  // by the link alone
  const auto costs = std::exchange(options.costs, {0, 0, 0, 0, 0});
  const SimulateResult result = run(program, options);
  CHECK(result.ahead > 40 * (kPages - kSlots) * 3 / 4);
  CHECK(result.demanded < result.ahead / 8);
  REQUIRE(result.steps.size() == 40);
  const auto steps = steady(result);
  CHECK(hit_ratio(steps) > double(kSlots - 1) / (kPages - 1) - 0.1);
  CHECK(hit_ratio(steps) <= double(kSlots - 1) / (kPages - 1) + 0.01);
  // 8 us of work a page against 40 us on the link: what does not fit decides.
  const double copy_ms = double(kPage) / 55e6 + 4.5e-3;
  const double link_ms = (kPages - kSlots) * copy_ms;
  CHECK(mean_ms(steps) > link_ms);
  CHECK(mean_ms(steps) < 1.15 * link_ms);
  MESSAGE("hits " << hit_ratio(steps) << ", times the ideal " << mean_ms(steps) / link_ms);
  options.policy = SimulatePolicy::kLru;
  options.costs = costs;
  CHECK(mean_ms(steady(run(program, options))) > 3 * mean_ms(steps));
}

TEST_CASE("simulate: what is missing is spread over the loop in the third repetition already") {
  constexpr Bytes kLarge = 8 * kPage;
  constexpr int kPages = 300;
  constexpr int kSlots = 240;
  for (const std::uint64_t us : {60, 96}) {  // the copies take as long, and 0.6 times as long
    const WorkRecords program = sweep(kPages, kLarge, 20, us);
    const auto steps = run(program, {.budget = kSlots * kLarge, .page_bytes = kLarge}).steps;
    REQUIRE(steps.size() == 20);
    CHECK(steps[2].ms < 1.1 * steps.back().ms);
  }
}

TEST_CASE("simulate: pages that chance chooses come in as fast as by LRU on demand") {
  constexpr Bytes kLarge = 8 * kPage;
  WorkRecords program;
  std::vector<std::uint32_t> weights;
  for (int i = 0; i < 60; ++i) {
    weights.push_back(program.allocate(kLarge));
    program.copy_to(weights.back());
  }
  std::mt19937 random(1);
  for (int i = 0; i < 6000; ++i) program.kernel({weights[random() % weights.size()]}, 7, 12);
  SimulateOptions options{.budget = 45 * kLarge, .page_bytes = kLarge, .steps = 8};
  const double ours = mean_ms(steady(run(program, options)));
  options.policy = SimulatePolicy::kLru;
  const double lru = mean_ms(steady(run(program, options)));
  MESSAGE("times LRU's " << ours / lru);
  CHECK(ours < 1.05 * lru);
}

TEST_CASE("simulate: what fits takes the recorded time under every policy, and moves nothing") {
  const WorkRecords program = sweep(20, kPage, 12, 50, 3);
  for (const SimulatePolicy policy : {SimulatePolicy::kPenstock, SimulatePolicy::kLru,
                                      SimulatePolicy::kFifo, SimulatePolicy::kBelady}) {
    const SimulateResult result = run(program, {.policy = policy, .budget = 100 * kPage});
    CHECK(result.ahead + result.demanded == 0);
    for (const SimulatedStep& step : steady(result)) {
      CHECK(step.bytes_in == 0);
      CHECK(step.bytes_out == 0);
      CHECK(step.ms == doctest::Approx(step.recorded_ms).epsilon(0.001));
      CHECK(step.recorded_ms == doctest::Approx(20 * (0.050 + 3 * 0.006)).epsilon(0.001));
      CHECK(step.least.in == 0);
      CHECK(step.least.out == 0);
    }
  }
}

TEST_CASE("simulate: no policy moves less than the least") {
  constexpr int kPages = 60;
  constexpr int kSlots = 40;
  const WorkRecords program = sweep(kPages, kPage, 12);
  for (const bool kernels_write : {false, true}) {
    SimulateOptions options{.budget = kSlots * kPage};
    options.kernels_write = kernels_write;
    // Each sweep but the last brings in what does not fit; what is changed goes out as well.
    const auto steps = steady(run(program, options));
    for (const SimulatedStep& step : steps) {
      CHECK(step.least.in <= (kPages - kSlots + 1) * kPage);
      CHECK(step.least.in >= (kPages - kSlots) * kPage);
      CHECK(step.least.out <= (kernels_write ? step.least.in : Bytes{0}) + kPage);
      if (kernels_write && &step != &steps.back()) CHECK(step.least.out + kPage >= step.least.in);
    }
    for (const SimulatePolicy policy : {SimulatePolicy::kPenstock, SimulatePolicy::kLru,
                                        SimulatePolicy::kFifo, SimulatePolicy::kBelady}) {
      options.policy = policy;
      Bytes in = 0;
      Bytes least = 0;
      for (const SimulatedStep& step : run(program, options).steps) {
        in += step.bytes_in;
        least += step.least.in;
      }
      CHECK(in >= least);
    }
  }
}

TEST_CASE("simulate: what is freed, or never touched again, need not move") {
  WorkRecords program;
  const auto weight = program.allocate(8 * kPage);
  program.copy_to(weight);
  for (int step = 0; step < 8; ++step) {
    const auto activation = program.allocate(6 * kPage);
    program.kernel({activation}, 1);  // beside it 2 pages of the weight have to leave
    program.kernel({activation}, 2);
    program.free(activation);
    program.kernel({weight}, 3);
  }
  const SimulateResult result =
      run(program, {.policy = SimulatePolicy::kLru, .budget = 12 * kPage, .steps = 8});
  Bytes in = 0;
  Bytes out = 0;
  for (const SimulatedStep& step : result.steps) {
    in += step.least.in;
    out += step.least.out;
  }
  CHECK(in == 8 * 2 * kPage);
  CHECK(out == 2 * kPage);  // once: nobody changes it again
}

TEST_CASE("simulate: work that hides the copies takes its own time") {
  // 200 us of work a page against 40 us on the link.
  const WorkRecords program = sweep(60, kPage, 40, 200);
  const SimulateResult result = run(program, {.budget = 40 * kPage});
  for (const SimulatedStep& step : steady(result)) {
    CHECK(step.ms < 1.05 * step.recorded_ms);
    CHECK(step.ms > 0.999 * step.recorded_ms);
    CHECK(step.bytes_in >= 20 * kPage);
  }
}

// Of a program that was paged while it was recorded: the times between its pieces hold the engine's
// calls, and its waits the link.
TEST_CASE("simulate: at its own budget a recording takes what it took") {
  constexpr Bytes kBudget = 200 * kPage;
  SimulateOptions options{.budget = kBudget, .recorded_budget = kBudget};
  SUBCASE("where the host sets the pace") {
    const WorkRecords program = sweep(300, kPage, 40, 60);
    for (const SimulatedStep& step : steady(run(program, options))) {
      CHECK(step.recorded_ms == doctest::Approx(300 * 0.060));
      CHECK(step.ms == doctest::Approx(step.recorded_ms).epsilon(0.02));
    }
    options.recorded_budget = 0;  // the calls are the mapper's, and do not count twice
    CHECK(mean_ms(steady(run(program, options))) == doctest::Approx(300 * 0.060).epsilon(0.02));
  }
  SUBCASE("where the link does") {
    WorkRecords program;
    std::vector<std::uint32_t> weights;
    for (int i = 0; i < 300; ++i) {
      weights.push_back(program.allocate(kPage));
      program.copy_to(weights.back());
    }
    // 133 pages come in a step, 5.68 ms; pieces are given every 5 us, and then waited for.
    for (int step = 0; step < 40; ++step) {
      for (const std::uint32_t weight : weights) {
        program.kernel({weight}, 7, weight == weights.back() ? 4185 : 5);
      }
    }
    std::vector<SimulatedStep> steps = steady(run(program, options));
    steps.pop_back();  // nothing in the recording tells when its last piece was over
    for (const SimulatedStep& step : steps) {
      CHECK(step.recorded_ms == doctest::Approx(299 * 0.005 + 4.185).epsilon(0.001));
      CHECK(step.ms == doctest::Approx(step.recorded_ms).epsilon(0.05));
    }
  }
}

TEST_CASE("simulate: moving pages takes the mapper's time, which the host's hides or does not") {
  const WorkRecords program = sweep(60, kPage, 40, 200);
  SimulateOptions options{.budget = 40 * kPage};
  const auto real = steady(run(program, options));
  const auto costs = options.costs;
  options.copy_call_us = options.digest_call_us = 0;
  options.costs = {0, 0, 0, 0, 0};
  const auto ideal = steady(run(program, options));
  CHECK(mean_ms(real) == doctest::Approx(mean_ms(ideal)).epsilon(0.01));
  // Some 20 pages a step, which takes 12 ms: a millisecond each is more than can be hidden.
  options.costs = costs;
  options.copy_call_us = 1000;
  const auto slow = steady(run(program, options));
  std::uint64_t loads = 0;
  for (const SimulatedStep& step : slow) loads += step.page_loads;
  CHECK(mean_ms(slow) > static_cast<double>(loads) / static_cast<double>(slow.size()));
}

TEST_CASE("simulate: what is changed goes out as well, once it leaves") {
  const WorkRecords program = sweep(60, kPage, 20);
  SimulateOptions options{.policy = SimulatePolicy::kLru, .budget = 40 * kPage};
  options.kernels_write = true;
  for (const SimulatedStep& step : steady(run(program, options))) {
    CHECK(step.bytes_out == 60 * kPage);
  }
  options.policy = SimulatePolicy::kPenstock;
  const auto steps = steady(run(program, options));
  for (const SimulatedStep& step : steps) {
    CHECK(step.bytes_out > 0);
    CHECK(step.bytes_out <= step.bytes_in + kPage);
  }
}

TEST_CASE("simulate: twice the link is half the time where the link decides") {
  const WorkRecords program = sweep(60, 8 * kPage, 30, 20);
  SimulateOptions options{.budget = 300 * kPage, .link_gb_per_s = 20};
  options.costs = {0, 0, 0, 0, 0};
  const double slow = mean_ms(steady(run(program, options)));
  options.link_gb_per_s = 40;
  const double fast = mean_ms(steady(run(program, options)));
  CHECK(slow / fast == doctest::Approx(2).epsilon(0.1));
}

TEST_CASE("simulate: a link on which a page takes days is no reason to simulate for days") {
  const SimulateOptions options{.budget = 20 * kPage, .link_gb_per_s = 1e-8};
  const SimulateResult result = run(sweep(10, 4 * kPage, 4, 20), options);
  CHECK(result.steps.back().ms > 24 * 3600 * 1e3);
}

TEST_CASE("simulate: the same recording gives the same figures") {
  const WorkRecords program = sweep(50, 3 * kPage, 20, 30, 5);
  for (const SimulatePolicy policy : {SimulatePolicy::kPenstock, SimulatePolicy::kBelady}) {
    const SimulateOptions options{.policy = policy, .budget = 90 * kPage};
    const SimulateResult one = run(program, options);
    const SimulateResult two = run(program, options);
    REQUIRE(one.steps.size() == two.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      CHECK(one.steps[i].ms == two.steps[i].ms);
      CHECK(one.steps[i].bytes_in == two.steps[i].bytes_in);
    }
  }
}

TEST_CASE("simulate: a budget that does not hold one piece of work is said, with the piece") {
  WorkRecords program = sweep(4, kPage, 10);
  const auto large = program.allocate(10 * kPage);
  program.kernel({large}, 3);
  for (const SimulatePolicy policy : {SimulatePolicy::kPenstock, SimulatePolicy::kLru}) {
    const SimulateResult result = run(program, {.policy = policy, .budget = 8 * kPage});
    CHECK(result.failed_piece == 4 + 40);
    CHECK(result.failed_bytes == 10 * kPage);
    CHECK(result.steps.size() == 10);
  }
}

TEST_CASE("simulate: pinned blocks stay") {
  WorkRecords program;
  std::vector<std::uint32_t> weights;
  for (int i = 0; i < 20; ++i) weights.push_back(program.allocate(kPage));
  for (const auto weight : weights) program.copy_to(weight);
  program.pin(weights[0], true);
  for (int step = 0; step < 20; ++step) {
    for (const auto weight : weights) program.kernel({weight}, 7);
  }
  const SimulateResult result =
      run(program, {.policy = SimulatePolicy::kLru, .budget = 10 * kPage});
  for (const SimulatedStep& step : steady(result)) CHECK(step.page_loads == 19);
  const SimulateResult engine = run(program, {.budget = 10 * kPage});
  CHECK(engine.steps.size() == 20);
}

TEST_CASE("simulate: steps by count, and a recording that never repeats itself is one") {
  const WorkRecords program = sweep(10, kPage, 9);
  CHECK(run(program, {.budget = 40 * kPage, .steps = 4}).steps.size() == 4);
  WorkRecords once;
  for (int i = 0; i < 10; ++i) once.kernel({once.allocate(kPage)}, 100 + i);
  const SimulateResult result = run(once, {.budget = 40 * kPage});
  REQUIRE(result.steps.size() == 1);
  CHECK(result.steps[0].page_uses == 10);
}

TEST_CASE("simulate: what cannot have happened is refused, with the record") {
  const auto refused = [](const std::vector<engine::WorkRecord>& records) {
    const auto result = engine::simulate(records, {.budget = 10 * kPage});
    CHECK(result.status().code() == Code::kInvalidArgument);
    return result.status().message();
  };
  WorkRecords good = sweep(3, kPage, 2);
  auto records = good.records;
  records[5].number = 99;  // a touch
  CHECK(refused(records) == "record 5: there is no block 99");
  records = good.records;
  records[3].op = engine::WorkOp{9};
  CHECK(refused(records) == "record 3: op 9 is unknown");
  records = good.records;
  records.back().op = engine::WorkOp::kFree;
  CHECK(refused(records).find("a touch was expected") != std::string::npos);
  records = good.records;
  records.pop_back();
  CHECK(refused(records).find("its touches are missing") != std::string::npos);
  records = good.records;
  records[3].at = 1;
  CHECK(refused(records) == "record 3: it is in the past of the one before");
  records = good.records;
  records[4].value = std::uint64_t{1} << 62;
  CHECK(refused(records) == "record 4: streams are numbered as they appear");
  records[4].at = std::uint64_t{1} << 60;
  CHECK(refused(records).find("years after") != std::string::npos);
  records = good.records;
  records[3].number = 1;
  CHECK(refused(records).find("allocated twice") != std::string::npos);
  CHECK(refused({}).find("holds no work") != std::string::npos);
}

TEST_CASE("simulate: a few records do not stand for any number of pages") {
  const auto refused = [](const WorkRecords& program, Bytes page_bytes) {
    const SimulateOptions options{
        .budget = kGiB, .page_bytes = page_bytes, .granularity = 64 * kKiB};
    const auto result = engine::simulate(program.records, options);
    return result.ok() ? std::string() : result.status().message();
  };
  const WorkRecords large = sweep(1, kTiB, 1);
  CHECK(refused(large, 64 * kKiB).find("16777216; at most 1048576") != std::string::npos);
  // Books of gigabytes.
  CHECK(refused(sweep(1, 65 * kGiB, 1), 64 * kKiB).find("at one time") != std::string::npos);
  const WorkRecords often = sweep(1, kTiB, 4100);
  CHECK(refused(often, kPage).find("touched in all") != std::string::npos);
}

}  // namespace
}  // namespace penstock::testing
