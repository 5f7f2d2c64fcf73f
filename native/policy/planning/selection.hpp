// SPDX-License-Identifier: Apache-2.0
// Which gaps to keep, given a capacity: at no step may the pages it uses and the gaps that cover it
// exceed the capacity.  A page all of whose gaps are kept stays for ever; every gap that is not
// kept is a load.  Three ways to choose, each best for some sequences; gaps without a step inside
// are free and always kept.  All need a capacity of the largest step or more.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/planning/sequence.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

// By UseIndex::Id, 1 = kept.
using KeptGaps = std::vector<std::uint8_t>;

// Whole pages stay, the others stream at every use; then what still fits.  The pages given up are
// shared out over the steps by their sizes (streams.hpp), so that the traffic is even: best for
// sweeps, also when an iteration goes there and back or several times round.
KeptGaps select_pages(const Sequence& sequence, const UseIndex& index, std::int32_t capacity);

// Short gaps first, because they cost the fewest slots for a load saved; then those of half the
// cycle and more, shared out as above.  Best for loops within the iteration.
KeptGaps select_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity);

// What LRU keeps with so many slots, and whatever else fits.  LRU holds the same pages at the end
// of every iteration, so its hits are a valid choice, and the result never loads more than LRU.
KeptGaps select_lru_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity);

}  // namespace penstock::policy
