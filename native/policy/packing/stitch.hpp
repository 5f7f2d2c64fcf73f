// SPDX-License-Identifier: Apache-2.0
// Which pieces of free memory to join for a request: the free end of one chunk, whole chunks, and
// the free beginning of another, so that a block's last chunk can be shared with the next block.
#pragma once

#include <vector>

#include "policy/packing/extents.hpp"

namespace penstock::policy::packing {

struct Stitch {
  std::vector<Piece> pieces;  // empty if free memory does not suffice
  Bytes missing = 0;          // then: so much more, in whole chunks, would do
};

// Joins at least `bytes` of what `tag` may use: fewest bytes lost in the chunks at both ends first,
// then the largest chunks, since mapping one costs the same whatever its size.
Stitch choose_stitch(const Extents& extents, Bytes bytes, StreamTag tag);

}  // namespace penstock::policy::packing
