// SPDX-License-Identifier: Apache-2.0
// How long an iteration takes, by arithmetic: a clock that advances over copies and steps, to judge
// plans without a machine.
//
// The model: one link, copies one after the other in the order of the plan, in each direction. Load
// i starts when the link is free, when the last step of the span before it in its slot has ended
// and what that has written is copied out, and when the page's own former span has.  A step starts
// when its pages have arrived and the step before it has ended, and takes its compute_ms.  Neither
// slows the other down.  Remapping is not modelled: measured at 60-110 us a page on the host's
// side, it hides behind a copy of 16 MiB (300 us).
#pragma once

#include <vector>

#include "policy/planning/schedule.hpp"

namespace penstock::policy {

struct Timing {
  double step_ms = 0;    // one iteration in the steady state: a model's step
  double bytes_out = 0;  // an iteration, of written pages that leave
};

// The steady state: a mean over iterations after the first few.  compute_ms: of each step;
// bytes_per_ms: of the link, in each direction.  The plan must pass check().
Timing simulate_plan(const Sequence& sequence, const std::vector<double>& compute_ms,
                     const Plan& plan, double bytes_per_ms);

}  // namespace penstock::policy
