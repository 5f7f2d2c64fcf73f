// SPDX-License-Identifier: Apache-2.0
// A recorded trace of allocations, checked and made ready to be replayed: events that ask nothing
// of an allocator are gone, ids have become slots of a small array, as the pointers of a program
// live in its own few objects, and the places are known at which a replay looks at its books.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::engine {

enum class TraceOp : std::uint8_t {
  kAllocate = 0,
  kFreeRequested = 1,  // another stream still uses the block
  kFreeCompleted = 2,
};

// One entry an event in each; times never fall.
struct Trace {
  std::span<const std::uint8_t> op;
  std::span<const std::uint32_t> id;
  std::span<const std::uint64_t> bytes;  // as the program asked for them
  std::span<const std::uint32_t> stream;
  std::span<const std::uint64_t> time_us;
};

struct ReplayOp {
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  Bytes bytes = 0;
  std::uint32_t slot = 0;
  std::uint32_t stream = kFree;  // of an allocation
};

// Where a replay stops its clock for a look: before op `at`.
struct ReplayStop {
  std::size_t at = 0;
  std::uint64_t time_us = 0;      // since the trace began
  Bytes requested = 0;            // the most since the stop before
  bool second_half_here = false;  // by time
};

struct ReplayProgram {
  std::vector<ReplayOp> ops;
  std::vector<ReplayStop> stops;  // the last one is behind the last op
  std::size_t slots = 0;
  std::uint32_t streams = 0;
  std::uint64_t duration_us = 0;
};

// kInvalidArgument, with the event, for what cannot have happened: an unknown op, an id that is
// allocated twice or freed without having been, a time that falls.  `stops` is how many places to
// look at, evenly spread over the time; one more is at half time.
Result<ReplayProgram> make_replay_program(const Trace& trace, std::size_t stops);

// The event of the trace that an op was made from.
std::size_t event_of_op(const Trace& trace, std::size_t op);

}  // namespace penstock::engine
