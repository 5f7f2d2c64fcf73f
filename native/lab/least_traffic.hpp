// SPDX-License-Identifier: Apache-2.0
// The fewest bytes that any policy moves for a recorded program within a budget.  Pure.
//
// Belady's MIN over bytes: whenever room is lacking, those leave whose next use is farthest, and
// what is used is there.  No policy brings in less, however far ahead it looks: prefetching changes
// when bytes come, not how many have to.  A byte is a page here, so neither pages' borders nor
// their sizes count; of a block that is touched in part any part may be the one that is there.
// Bytes that were changed go out as they leave, unless nobody touches them again.
#pragma once

#include <vector>

#include "lab/work_program.hpp"

namespace penstock::engine {

struct Traffic {
  Bytes in = 0;
  Bytes out = 0;
};

// For each step of the program; up to the first piece that the budget does not hold.
std::vector<Traffic> least_traffic(const WorkProgram& program, Bytes budget, bool kernels_write);

}  // namespace penstock::engine
