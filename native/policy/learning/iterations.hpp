// SPDX-License-Identifier: Apache-2.0
// The iterations of a whole program that is known to its end: steps of training, passes of a
// pipeline, tokens of a generation.  Pure.
//
// An iteration is what comes back to all that the program ever comes back to, and the shortest such
// stretch: a loop over one layer is none, since it touches little; nor is an epoch, since its steps
// touch as much.  So iterations may differ: in length, in shapes, in what else is done in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace penstock::policy::learning {

// Work that touches what lasts.
struct LastingUse {
  std::int64_t code = 0;  // the same for work of the same code on the same blocks
  std::vector<std::uint32_t> blocks;
};

// The uses that iterations begin with, and where the last one ends; less than three numbers where
// nothing is done twice.
std::vector<std::size_t> find_iterations(std::span<const LastingUse> uses,
                                         std::span<const Bytes> bytes_of_block);

}  // namespace penstock::policy::learning
