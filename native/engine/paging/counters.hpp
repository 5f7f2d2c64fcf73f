// SPDX-License-Identifier: Apache-2.0
// What happened since the pager was made.  Plain numbers under the pager's lock.
#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace penstock::engine {

struct Counters {
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  std::uint64_t copies = 0;
  std::uint64_t map_calls = 0;  // map and set_access
  std::uint64_t unmap_calls = 0;
  std::uint64_t page_uses = 0;
  std::uint64_t page_hits = 0;
  std::uint64_t prefetched_pages = 0;
  std::uint64_t demanded_pages = 0;
  std::uint64_t iterations = 0;
  std::uint64_t plans = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t failed_moves = 0;  // ahead of their time: of no matter, but that it was lost
};

}  // namespace penstock::engine
