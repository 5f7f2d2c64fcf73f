// SPDX-License-Identifier: Apache-2.0
// How long an iteration takes, by arithmetic: a clock that advances over copies and steps, to judge
// plans and policies without a machine.
//
// The model: one link, copies one after the other in the order of the plan, in each direction. Load
// i starts when the link is free, when the last step of the span before it in its slot has ended
// and what that has written is copied out, and when the page's own former span has.  A step starts
// when its pages have arrived and the step before it has ended, and takes its compute_ms.  Neither
// slows the other down.  Remapping is not modelled: measured at 60-110 us a page on the host's
// side, it hides behind a copy of 16 MiB (300 us).
#pragma once

#include "base/status.hpp"
#include "policy/residency.hpp"
#include "policy/schedule.hpp"

namespace penstock::policy {

struct Timing {
  double step_ms = 0;    // one iteration in the steady state: a model's step
  double stall_ms = 0;   // of which steps waited for pages
  double bytes_in = 0;   // an iteration; a mean where the policy's iterations differ
  double bytes_out = 0;  // an iteration, of written pages that leave; 0 where it is not modelled
  double link_busy = 0;  // the share of step_ms in which the link was copying
};

// The steady state: a mean over iterations after the first few.  The plan must pass check().
Timing simulate_plan(const Sequence& sequence, const Plan& plan, const Link& link);

// The same clock for a policy that loads a page when a step asks for it, and nothing ahead: all of
// a step's missing pages one after the other, then the step.
Result<Timing> simulate_on_demand(const Sequence& sequence, std::int32_t slots,
                                  Replacement replacement, const Link& link);

// The yardstick, max(T, (M - S) / B): all compute, or the bytes that a pool of `slots` cannot hold,
// at the link's speed; the ideal loses no slot to transfer.
double ideal_ms(const Sequence& sequence, std::int32_t slots, const Link& link);

}  // namespace penstock::policy
