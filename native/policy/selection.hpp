// SPDX-License-Identifier: Apache-2.0
// Which gaps to keep, given a capacity: at no step may the pages it uses and the gaps that cover it
// exceed the capacity.  A page all of whose gaps are kept stays for ever; every gap that is not
// kept is a load.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/sequence.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

// By UseIndex::Id, 1 = kept.
using KeptGaps = std::vector<std::uint8_t>;

// Gaps without a step inside are free.  Then the short ones, shortest first, because they cost the
// fewest slots for a load saved.  Then those of half the cycle and more, of which a plain sweep
// consists: the capacity left decides how many, and the pages given up are shared out over the
// steps in proportion to `weight` (see streams.hpp).  Needs capacity >= the largest step.
KeptGaps select_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity,
                     const std::vector<double>& weight);

// What LRU keeps with so many slots, and whatever else fits.  LRU holds the same pages at the end
// of every iteration, so its hits are a valid choice, and the result never loads more than LRU.
KeptGaps select_lru_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity);

}  // namespace penstock::policy
