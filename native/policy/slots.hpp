// SPDX-License-Identifier: Apache-2.0
// Which load goes into which slot.  Loads of one slot must not overlap, and their distance in load
// order should be even and large, because it is how early a copy can start: a load is issued when
// the span before it in its slot has ended.
//
// A sweep goes in rounds: with k loads in S slots, Q = ceil(k / S) rounds of floor or ceil(k / Q)
// loads, the slot being the index within the round, so that the distance also holds where the
// iteration wraps around.  Spans that outlast a round get slots of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/schedule.hpp"

namespace penstock::policy {

struct SlotAssignment {
  std::vector<SlotId> slot;  // by load, from 0
  std::vector<SlotId> turn;  // see Plan::turn; empty when the slots keep their names
};

// `loads` are sorted by first step.  Nothing when no assignment was found: colouring arcs of a
// circle can need more slots than overlap at any step, and finding the best is NP-hard.
std::optional<SlotAssignment> assign_slots(const std::vector<Load>& loads, StepId steps,
                                           std::int32_t slots);

// The same with slots that may change their names from one iteration to the next, first in, first
// out.  Always succeeds when no more than `slots` spans overlap at any step.
SlotAssignment assign_turning_slots(const std::vector<Load>& loads, StepId steps,
                                    std::int32_t slots);

// The least distance in load order between two consecutive loads of one slot that keeps its name.
std::int64_t least_distance(const std::vector<Load>& loads);

}  // namespace penstock::policy
