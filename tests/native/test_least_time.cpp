// SPDX-License-Identifier: Apache-2.0
// The least time of recorded programs: by hand for one, and below what any policy takes.
#include <algorithm>
#include <numeric>
#include <random>

#include "doctest/doctest.h"
#include "lab/least_time.hpp"
#include "lab/simulate.hpp"
#include "work_records.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kBlock = 2 * kMiB;
constexpr double kCopyMs = double(kBlock) / 1e6;  // at 1 GB/s

engine::SimulateResult simulated(const WorkRecords& program,
                                 const engine::SimulateOptions& options) {
  auto result = engine::simulate(program.records, options);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return std::move(result).value();
}

TEST_CASE("least time: a phase that needs no link does not hide another's copies") {
  constexpr int kWorked = 10;
  constexpr int kRead = 20;
  constexpr int kRoom = 12;
  WorkRecords program;
  std::vector<std::uint32_t> worked;
  std::vector<std::uint32_t> read;
  for (int i = 0; i < kWorked + kRead; ++i) {
    auto& blocks = i < kWorked ? worked : read;
    blocks.push_back(program.allocate(kBlock));
    program.copy_to(blocks.back());
  }
  for (int step = 0; step < 8; ++step) {
    for (int i = 0; i < 300; ++i) program.kernel({worked[nth(i % kWorked)]}, 1, 100);
    for (const auto block : read) program.kernel({block}, 2, 1);
  }
  engine::SimulateOptions options{.budget = kRoom * kBlock, .steps = 8};
  options.link_gb_per_s = 1;
  const auto result = simulated(program, options);
  for (std::size_t i = 1; i < result.steps.size(); ++i) {
    const engine::SimulatedStep& step = result.steps[i];
    // Of what is read 12 blocks may be there; the work of the other phase takes 30 ms beside that.
    CHECK(step.least_ms > 0.95 * (30 + (kRead - kRoom) * kCopyMs));
    CHECK(step.least_ms < 30 + (kWorked + kRead) * kCopyMs);
    // More than either alone.
    CHECK(step.least_ms > 1.05 * std::max(30.0, double(step.least.in) / 1e6));
  }
}

TEST_CASE("least time: what fits takes the time of the work") {
  for (const auto& step : simulated(sweep(20, kBlock, 12), {.budget = 30 * kBlock}).steps) {
    CHECK(step.least_ms == doctest::Approx(step.recorded_ms).epsilon(1e-6));
  }
}

TEST_CASE("least time: no policy takes less") {
  std::mt19937 random(5);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  for (int round = 0; round < 30; ++round) {
    WorkRecords program;
    std::vector<std::uint32_t> blocks;
    for (int i = 0; i < 30; ++i) {
      blocks.push_back(program.allocate(kBlock * (1 + below(3))));
      program.copy_to(blocks.back());
    }
    for (int piece = 0; piece < 400; ++piece) {
      std::vector<std::uint32_t> touched;
      const int from = below(4) == 0 ? 0 : piece / 20;  // by chance, and a window that moves on
      for (int i = 0; i < 1 + below(3); ++i) touched.push_back(blocks[nth((from + below(8)) % 30)]);
      const auto made = program.allocate(kBlock);
      touched.push_back(made);
      program.kernel(touched, 3, static_cast<std::uint64_t>(10 + below(400)));
      program.free(made);
    }
    for (const auto policy : {engine::SimulatePolicy::kPenstock, engine::SimulatePolicy::kLru,
                              engine::SimulatePolicy::kBelady}) {
      engine::SimulateOptions options{.policy = policy, .budget = Bytes(14 + below(20)) * kBlock};
      options.page_bytes = kBlock;
      options.device_bytes = 100 * kBlock;
      options.steps = static_cast<std::uint64_t>(1 + below(6));
      const auto read = engine::make_work_program(program.records, options.steps);
      REQUIRE(read.ok());
      const auto steps = engine::least_time(read.value(), options.budget, options.link_gb_per_s);
      double took = 0;
      for (const auto& step : simulated(program, options).steps) took += step.ms;
      INFO("round " << round << ", policy " << int(policy));
      CHECK(took > 0.999 * std::accumulate(steps.begin(), steps.end(), 0.0));
    }
  }
}

}  // namespace
}  // namespace penstock::testing
