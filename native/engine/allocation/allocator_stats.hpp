// SPDX-License-Identifier: Apache-2.0
// The allocator's counters, as torch.cuda.memory_stats() knows them.  The caller locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/units.hpp"

namespace penstock::engine {

struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  // all that was ever added, and
  std::int64_t freed = 0;      // taken away, since reset_accumulated()

  void add(std::uint64_t amount) {
    current += static_cast<std::int64_t>(amount);
    allocated += static_cast<std::int64_t>(amount);
    peak = std::max(peak, current);
  }
  void take(std::uint64_t amount) {
    current -= static_cast<std::int64_t>(amount);
    freed += static_cast<std::int64_t>(amount);
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

// [0] all, [1] requests up to 1 MiB, [2] larger ones: PyTorch's two pools, which share memory here.
struct StatBySize {
  std::array<Stat, 3> of;

  static constexpr Bytes kSmall = kMiB;
  static constexpr Bytes kLarge = ~Bytes{0};  // what counts under "larger", whatever asked for it
  void add(std::uint64_t amount, Bytes request) {
    of[0].add(amount);
    of[request <= kSmall ? 1 : 2].add(amount);
  }
  void take(std::uint64_t amount, Bytes request) {
    of[0].take(amount);
    of[request <= kSmall ? 1 : 2].take(amount);
  }
};

struct AllocatorStats {
  StatBySize requested_bytes;  // of blocks handed out and not yet reusable
  StatBySize allocated_bytes;  // rounded to 512, until free()
  StatBySize active_bytes;     // until the last use on any stream is over
  StatBySize reserved_bytes;   // chunks; all under "larger", since sizes share chunks
  StatBySize allocations;
  StatBySize active_blocks;
  Stat chunks;
  Stat stitched_ranges;
  Stat stitched_range_bytes;
  std::int64_t inactive_blocks = 0;  // free extents
  std::int64_t retries = 0;
  std::int64_t out_of_memory = 0;
  std::int64_t stitches = 0;
  std::int64_t stitch_hits = 0;
  std::int64_t stream_waits = 0;
  std::int64_t driver_calls = 0;
  Bytes budget = 0;
  Bytes device_free = 0;
  Bytes device_total = 0;

  template <class Visit>
  void each(Visit&& visit) {
    for (StatBySize* by : {&requested_bytes, &allocated_bytes, &active_bytes, &reserved_bytes,
                           &allocations, &active_blocks}) {
      for (Stat& stat : by->of) visit(stat);
    }
    for (Stat* stat : {&chunks, &stitched_ranges, &stitched_range_bytes}) visit(*stat);
  }
};

}  // namespace penstock::engine
