// SPDX-License-Identifier: Apache-2.0
// Whose place a page gets.  Each order says whether what is held in one slot is a better victim
// than what is held in another; of equal ones the caller takes the first.  Pure.
#pragma once

#include <cstdint>

namespace penstock::policy::residency {

struct Held {
  bool empty = false;
  bool kept = false;          // the plan has it stay through the iteration
  std::int64_t distance = 0;  // until it is needed; the largest number where no plan has it
  std::uint64_t stamp = 0;    // of its last use
};

// For a page of the plan: what is needed last (Belady), without a plan what was used longest ago.
[[nodiscard]] constexpr bool needed_later(const Held& a, const Held& b) {
  if (a.empty != b.empty) return a.empty;
  if (a.empty) return false;
  return a.distance != b.distance ? a.distance > b.distance : a.stamp < b.stamp;
}

// For slots that go for good: as needed_later(), and what the plan keeps last of all.
[[nodiscard]] constexpr bool less_lost(const Held& a, const Held& b) {
  if (a.empty != b.empty) return a.empty;
  if (a.kept != b.kept) return b.kept;
  return !a.empty && a.distance > b.distance;
}

}  // namespace penstock::policy::residency
