// SPDX-License-Identifier: Apache-2.0
// Simulations and replays without host memory at any one of their allocations: an error, or the
// figures that there are with it.
#include <array>
#include <optional>
#include <utility>

#include "host_memory/failing.hpp"
#include "lab/replay.hpp"
#include "lab/simulate.hpp"
#include "work_records.hpp"

namespace penstock::testing {
namespace {

// Runs `work()` with each of its allocations failing; its figures are a pair of numbers.
template <class Work>
void fail_each_allocation_of(Work&& work) {
  const auto full = work();
  REQUIRE(full.ok());
  const std::pair<Bytes, Bytes> figures = full.value();
  fail_each_allocation(
      [&] {
        scenarios::left = {};
        std::optional<std::pair<Bytes, Bytes>> found;
        const bool well = scenarios::worked([&]() -> Status {
          PENSTOCK_ASSIGN(found, work());
          return {};
        });
        const Shelter shelter;
        if (well) CHECK(*found == figures);
        return well ? 0 : 1;
      },
      1);
}

TEST_CASE("host memory: a simulation") {
  const WorkRecords program = sweep(10, kMiB, 6, 100, 1);
  for (const auto policy : {engine::SimulatePolicy::kPenstock, engine::SimulatePolicy::kLru,
                            engine::SimulatePolicy::kFifo, engine::SimulatePolicy::kBelady}) {
    CAPTURE(static_cast<int>(policy));
    fail_each_allocation_of([&]() -> Result<std::pair<Bytes, Bytes>> {
      engine::SimulateOptions options;
      options.policy = policy;
      options.budget = 6 * kMiB;
      options.granularity = 256 * kKiB;
      PENSTOCK_ASSIGN(const engine::SimulateResult found,
                      engine::simulate(program.records, options));
      Bytes moved = 0;
      for (const engine::SimulatedStep& step : found.steps) moved += step.bytes_in;
      return std::pair{moved, found.peak};
    });
  }
}

TEST_CASE("host memory: a replay") {
  constexpr std::size_t kEvents = 60;
  std::array<std::uint8_t, kEvents> op{};
  std::array<std::uint32_t, kEvents> id{};
  std::array<std::uint64_t, kEvents> bytes{};
  std::array<std::uint32_t, kEvents> stream{};
  std::array<std::uint64_t, kEvents> time_us{};
  for (std::size_t i = 0; i < kEvents; ++i) {
    // Ten that stay a while; a larger one fits where several that go have been.
    op[i] = i % 20 < 10 ? 0 : 2;
    id[i] = static_cast<std::uint32_t>(i / 20 * 10 + i % 10);
    bytes[i] = (i / 20 + 1) * 3 * kMiB;
    stream[i] = static_cast<std::uint32_t>(i % 2);
    time_us[i] = i;
  }
  const engine::Trace trace{op, id, bytes, stream, time_us};
  for (const auto allocator : {engine::ReplayAllocator::kStitch, engine::ReplayAllocator::kNative,
                               engine::ReplayAllocator::kExpandable}) {
    CAPTURE(static_cast<int>(allocator));
    fail_each_allocation_of([&]() -> Result<std::pair<Bytes, Bytes>> {
      engine::ReplayOptions options;
      options.subject.allocator = allocator;
      options.subject.capacity = kGiB;
      options.points = 20;
      options.now_ns = [] { return std::int64_t{0}; };
      PENSTOCK_ASSIGN(const engine::ReplayResult found, engine::replay(trace, options));
      return std::pair{found.peak_reserved, found.peak_requested};
    });
  }
}

}  // namespace
}  // namespace penstock::testing
