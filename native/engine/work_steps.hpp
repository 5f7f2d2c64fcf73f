// SPDX-License-Identifier: Apache-2.0
// Where a recorded program repeats itself, and what each iteration asks of a device: the parts of
// make_work_program() that look at the program as a whole.
#pragma once

#include "engine/work_program.hpp"

namespace penstock::engine {

// Tell blocks that work comes back to over and over from those that come and go.
void mark_lasting(WorkProgram& program);
// kInvalidArgument for more steps than there are pieces.
Status find_steps(WorkProgram& program, std::uint64_t wanted);
void measure_steps(WorkProgram& program);

}  // namespace penstock::engine
