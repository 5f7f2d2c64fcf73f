// SPDX-License-Identifier: Apache-2.0
// Replays a recorded trace of allocations on an allocator, without any memory: how much device
// memory would have been reserved, what the calls to the driver would have cost, and how long the
// allocator itself takes.
//
// The clock runs while the allocator works and stands while the books are read, at a few hundred
// places.  It includes the driver without memory, some nanoseconds a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "lab/replay_program.hpp"
#include "lab/replay_subject.hpp"

namespace penstock::engine {

struct ReplayOptions {
  ReplaySubjectOptions subject;
  std::size_t points = 0;              // of the curve, at most; about
  std::int64_t (*now_ns)() = nullptr;  // a steady clock
};

struct ReplayPoint {
  std::uint64_t time_us = 0;  // since the trace began
  Bytes requested = 0;        // the most since the point before
  Bytes reserved = 0;         // at that time
};

struct ReplayResult {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t events = 0;  // of the trace
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  // The event at which the capacity did not suffice, or kNone; the rest is up to there.
  std::uint64_t failed_event = kNone;
  Bytes peak_requested = 0;
  Bytes peak_reserved = 0;
  std::int64_t map_calls = 0;
  std::int64_t stitches = 0;
  std::int64_t stitch_hits = 0;
  double modelled_driver_ms = 0;
  double modelled_driver_ms_second_half = 0;  // by time
  double trace_ms = 0;
  double ns_per_op = 0;  // an op is an allocation or a free
  std::vector<ReplayPoint> curve;
};

Result<ReplayResult> replay(const Trace& trace, const ReplayOptions& options);

}  // namespace penstock::engine
