// SPDX-License-Identifier: Apache-2.0
// What a replay drives: Penstock's allocator on a driver without memory, or a model of one of
// PyTorch's.  One thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "base/units.hpp"
#include "lab/machines/modelled_driver.hpp"
#include "policy/packing/options.hpp"

namespace penstock::engine {

enum class ReplayAllocator { kStitch, kNative, kExpandable };

class ReplaySubject {
 public:
  virtual ~ReplaySubject() = default;
  // `handle` is what free() takes.  kOutOfMemory where the capacity does not suffice.
  virtual Status allocate(Bytes bytes, std::uint32_t stream, std::uint64_t& handle) = 0;
  virtual Status free(std::uint64_t handle) = 0;

  [[nodiscard]] virtual Bytes reserved() const = 0;
  [[nodiscard]] virtual Bytes peak_reserved() const = 0;
  [[nodiscard]] virtual std::int64_t map_calls() const = 0;
  [[nodiscard]] virtual double modelled_us() const = 0;
  [[nodiscard]] virtual std::int64_t stitches() const { return 0; }
  [[nodiscard]] virtual std::int64_t stitch_hits() const { return 0; }
};

// Microseconds a chunk while a kernel runs, of many at once (H200,
// benchmarks/results/vmm_calls.json): to create it, map it, give access to it, unmap it.  A call
// for one alone costs 50 more; giving access and unmapping take so long for each chunk, not for
// each call.
inline constexpr driver::DriverCosts kReplayCosts{
    .create_us = 7.2, .map_us = 1.6, .set_access_us = 19.2, .unmap_us = 13.8};

struct ReplaySubjectOptions {
  ReplayAllocator allocator = ReplayAllocator::kStitch;
  Bytes capacity = kTiB;
  Bytes granularity = 2 * kMiB;
  driver::DriverCosts costs = kReplayCosts;
  policy::packing::Options packing = {};
};

// For streams 0 .. streams - 1.
Result<std::unique_ptr<ReplaySubject>> make_replay_subject(const ReplaySubjectOptions& options,
                                                           std::uint32_t streams);

}  // namespace penstock::engine
