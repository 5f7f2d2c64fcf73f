// SPDX-License-Identifier: Apache-2.0
// Simulates a recorded program under another budget: which bytes would move and how long its
// iterations would take.  Nothing is left to chance: the same recording gives the same figures.
//
// The calling thread gives work as fast as the recorded one did, waits where that waited, and never
// has more than kQueue pieces on a stream that are not over.  Kernels take their recorded time;
// copies take their turn on the link; calls that change mappings, and those that give copies, take
// the calling thread's time.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/least_traffic.hpp"
#include "lab/simulate_subject.hpp"

namespace penstock::engine {

struct SimulatedStep {
  double ms = 0;
  double recorded_ms = 0;
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  std::uint64_t page_uses = 0;  // pages that pieces of work touch, each piece counted by itself
  std::uint64_t page_loads = 0;
  Traffic least;        // of any policy
  double least_ms = 0;  // by the work, by that, and by when bytes can move (least_time.hpp)
  std::uint64_t first_piece = 0;
  std::uint64_t end_piece = 0;
};

struct SimulateResult {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::vector<SimulatedStep> steps;
  std::vector<driver::BusySpan> spans;  // of the last step, from its begin
  std::uint64_t pieces = 0;             // of work
  std::uint64_t blocks = 0;
  Bytes peak = 0;  // of blocks that live at one time
  Bytes page_bytes = 0;
  std::uint64_t ahead = 0;  // pages brought in before their use; and on demand
  std::uint64_t demanded = 0;
  std::uint64_t failed_piece = kNone;  // that the budget does not hold; the steps end before it
  Bytes failed_bytes = 0;              // that it touches
};

Result<SimulateResult> simulate(std::span<const WorkRecord> records,
                                const SimulateOptions& options);

}  // namespace penstock::engine
