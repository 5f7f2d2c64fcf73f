// SPDX-License-Identifier: Apache-2.0
// Saves loads of pages that have not left yet.
//
// Which gaps to keep is decided by counting; slots come after.  So a page may be due to come into
// one slot while it is still in another, which nobody has wanted in between: where an iteration
// turns round, its last pages.  Such a page stays where it is, and what was to come there goes
// where the page was to go.
#pragma once

#include <vector>

#include "policy/planning/schedule.hpp"

namespace penstock::policy {

// `loads` have slots, and are sorted by first step, then page, before and after.  Fewer loads,
// never more; at no step do two of one slot overlap.
void stay_put(StepId steps, std::vector<Load>& loads);

}  // namespace penstock::policy
