// SPDX-License-Identifier: Apache-2.0
// The least time that a step of a recorded program takes in a budget, whatever the policy. Pure.
//
// The fewest bytes that have to move (least_traffic.hpp) say nothing of when.  Of what a stretch of
// work touches no more can be there when it begins than the budget holds: the rest comes over the
// link while it lasts, or it lasts until that has come.  So each stretch has a least time, and a
// step that is cut into several takes as long as all of them.  Whatever the cuts that holds; here
// it is the cuts, of some dozens of places, whose sum is largest.
#pragma once

#include <vector>

#include "lab/work_program.hpp"

namespace penstock::engine {

// In ms, for each step of the program.  One GB/s is 1e9 bytes a second, into the device.
std::vector<double> least_time(const WorkProgram& program, Bytes budget, double link_gb_per_s);

}  // namespace penstock::engine
