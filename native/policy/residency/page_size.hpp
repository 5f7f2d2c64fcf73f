// SPDX-License-Identifier: Apache-2.0
// How large the pages of a program are whose work is announced.  Pure.
#pragma once

#include <algorithm>
#include <bit>

#include "base/units.hpp"

namespace penstock::policy::residency {

struct PageSizes {
  // So many pages at least, where the bounds allow.  A page that comes or goes costs its mapping,
  // 60 to 110 us on the mapper's thread, as much as copying 3 to 6 MiB: at a budget of 1.9 GiB
  // (H200) normal took 1.139 times as long as fast with pages of 8 MiB, 1.086 with 16.
  Bytes pages = 96;
  Bytes smallest = 2 * kMiB;
  // Simulated with 32 MiB on thirteen programs: what a router chooses takes 1.7 to 2.6 times as
  // long within 1.25 to 2, an encoder and a decoder in turns up to 1.29; none gains more than an
  // eighth.
  Bytes largest = 16 * kMiB;
};

[[nodiscard]] constexpr Bytes page_size(Bytes budget, Bytes granularity,
                                        const PageSizes& sizes = {}) {
  const Bytes wanted = std::bit_floor(std::max<Bytes>(budget / sizes.pages, 1));
  return std::max(granularity, std::clamp(wanted, sizes.smallest, sizes.largest));
}

}  // namespace penstock::policy::residency
