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
  double compute_ms = 0;             // 0 = not known
  std::vector<PageId> written = {};  // of the pages: those that must be copied out when they leave
};

struct Sequence {
  std::vector<Bytes> page_bytes;  // what a copy of each page moves; a page fills one slot
  std::vector<Step> steps;
};

// What a copy costs; one runs at a time in each direction.
struct Link {
  double bytes_per_ms = 0;      // host to device; 54.6 GB/s = 54.6e6; 0 = not known
  double latency_ms = 0;        // added to every copy
  double out_bytes_per_ms = 0;  // device to host; 0 = as in
};

}  // namespace penstock::policy
