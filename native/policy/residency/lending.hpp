// SPDX-License-Identifier: Apache-2.0
// Device memory that was given back because others needed it, and when it is taken again.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.hpp"

namespace penstock::policy::residency {

// How many pieces of work lie between two looks at what is free: asking takes the driver longer
// than a launch, and who needed memory once may need it again soon.  Not swept.
inline constexpr std::uint64_t kWorkBetweenLooks = 4096;

// Of `lent` bytes so many, whole pages, while `free` are.  As much again stays free, so that the
// next who asks the driver need not ask here.
[[nodiscard]] constexpr Bytes taken_again(Bytes lent, Bytes free, Bytes page) {
  return std::min(lent, free / 2) / page * page;
}

}  // namespace penstock::policy::residency
