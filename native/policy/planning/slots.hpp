// SPDX-License-Identifier: Apache-2.0
// Which load goes into which slot.  Loads of one slot must not overlap, and their distance in load
// order should be even and large, because it is how early a copy can start: a load is issued when
// the span before it in its slot has ended.
//
// A sweep goes in rounds: with k loads in S slots, Q = ceil(k / S) rounds of floor or ceil(k / Q)
// loads, the slot being the index within the round, so that the distance also holds where the
// iteration wraps around.  Spans that outlast a round get slots of their own.  Where that is most
// of them, or the slots do not suffice, all are coloured as arcs (arc_colouring.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "policy/planning/schedule.hpp"
#include "policy/planning/sequence.hpp"

namespace penstock::policy {

// Sets the slots of `loads`, from 0.  They are sorted by first step, then page, and stay so; no
// more than `slots` of them may overlap at any step.  May split spans, which makes more loads.
void assign_slots(const UseIndex& index, std::int32_t slots, std::vector<Load>& loads);

}  // namespace penstock::policy
