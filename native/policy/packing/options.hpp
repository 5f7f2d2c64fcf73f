// SPDX-License-Identifier: Apache-2.0
// What the packing of blocks into chunks can be told.  The defaults are those that packed five
// recorded training and generation runs best at a modelled driver cost below 2 % of their time
// (docs/replay.md has the table).
#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace penstock::policy::packing {

// GMLake's defragLevel: when to join scattered free memory.
enum class StitchWhen : std::uint8_t {
  kFirst = 0,         // before the device is asked for more
  kWhenFull = 1,      // after the device, or the budget, had no more
  kAfterRelease = 2,  // after cached chunks were given back as well
  kNever = 3,
};

struct Options {
  // Chunks are 1, 2, 4, ... of the smallest, up to the largest; both are powers of two, and
  // multiples of the device's granularity.  Mapping a chunk costs the same whatever its size (H200:
  // 8 us to create, 1.6 to map, 19 to give access, for 2 MiB as for 64), but only a whole free
  // chunk can be stitched.
  Bytes smallest_chunk = 2 * kMiB;
  Bytes largest_chunk = 8 * kMiB;
  // What memory grows by at once may be cut into larger ones, if they are 128 or more: the logits
  // of a large vocabulary take 16 GB, and 2,000 chunks each time that they are stitched.
  Bytes huge_chunk = 32 * kMiB;
  // What memory grows by is cut into about so many chunks.
  std::uint64_t chunks_a_growth = 4;
  // While memory grows in a burst, so much is mapped at once.
  Bytes growth_bytes = 32 * kMiB;
  // Growths with no more than so many allocations between them are a burst.
  std::uint64_t burst_allocations = 8;
  // Requests below it are stitched only when nothing else is left (GMLake's fragLimit; its default
  // is 512 MiB).  Blocks of 2 to 16 MiB packed no better for being stitched, and mapping a
  // chunk once more costs 21 us (benchmarks/results/vmm_calls.json).
  Bytes stitch_limit = 16 * kMiB;
  // A stitched range serves requests down to 1/reuse_limit of its size (GMLake's reuseLimit).  Its
  // unused tail is not lost: the chunks of it serve others meanwhile.
  double reuse_limit = 10.0;
  // Addresses that stitched ranges may span together (GMLake's autoGC).
  Bytes range_limit = 16 * kTiB;
  // How many stitched ranges are kept.
  std::uint64_t max_ranges = 4096;
  StitchWhen stitch_when = StitchWhen::kFirst;
  // Whether a stitch may join free memory with new chunks (GMLake's reAlloc).
  bool grow_exactly = true;
};

}  // namespace penstock::policy::packing
