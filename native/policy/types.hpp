// SPDX-License-Identifier: Apache-2.0
// The words of the policy layer.  Pure data: no driver, no locks, no clock.
//
// A *page* is the unit of paging: the part of a range that one chunk backs.  A *step* is one use in
// the sequence and lists the pages that must be resident while it runs.  An iteration is a list of
// steps that repeats, so all of this is cyclic: after the last step comes the first.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace penstock::policy {

using PageId = std::int32_t;
using SlotId = std::int32_t;  // a chunk of the pool, 0 .. slots-1
using StepId = std::int32_t;

inline constexpr SlotId kAnySlot = -1;

struct Step {
  std::vector<PageId> pages;         // distinct
  std::vector<PageId> written = {};  // of the pages: those that must be copied out when they leave
};

struct Sequence {
  std::vector<Bytes> page_bytes;  // what a copy of each page moves; a page fills one slot
  std::vector<Step> steps;
};

}  // namespace penstock::policy
