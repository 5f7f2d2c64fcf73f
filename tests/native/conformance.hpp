// SPDX-License-Identifier: Apache-2.0
// The driver contract in executable form: every rule of driver.hpp as a function over any Driver.
// No kernel is needed: bytes are written and read by copies and fills.  test_conformance_host.cpp
// runs the rules on the emulated GPU, test_conformance_cuda.cpp on a real one where there is one.
// Thread rule: one rule at a time; rules start and join threads of their own.
#pragma once

#include <vector>

#include "conformance_copies.hpp"
#include "conformance_managed.hpp"
#include "conformance_mappings.hpp"
#include "conformance_ranges.hpp"
#include "conformance_streams.hpp"

namespace penstock::driver::conformance {

struct Rule {
  const char* name;
  void (*keep)(Driver&);
};

inline const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"a driver says what it is", describes_itself},
      {"live() counts one of each and comes back to none", live_counts},
      {"ranges are aligned, apart and given back whole", ranges},
      {"a range with a mapping stays", range_with_mapping},
      {"chunks take device memory and give it back", chunk_memory},
      {"a chunk beyond the device is out of memory, in numbers", chunk_beyond_capacity},
      {"bad sizes and unknown chunks are refused", chunk_arguments},

      {"what is copied in comes out", round_trip},
      {"one chunk at two addresses is one memory", aliasing},
      {"map refuses what it cannot do and leaves nothing behind", map_arguments},
      {"an occupied address is refused, its mapping unharmed", map_occupied},
      {"set_access covers adjacent mappings and refuses a hole", access_over_hole},
      {"unmap takes several adjacent mappings at once", unmap_several},
      {"unmap refuses part of a mapping and leaves it intact", unmap_partial},
      {"a released chunk lives until its last mapping goes", release_while_mapped},
      {"a range keeps its address while its backing changes", change_backing},
      {"host chunks back a range like device chunks", host_chunks},
      {"unmap does not wait for unrelated work", unmap_does_not_wait},
      {"every thread may map and unmap", many_threads},

      {"copies of odd sizes at odd offsets cross chunks", odd_copies},
      {"copy_within and fill touch exactly their bytes", within_and_fill},
      {"overlapping copies are refused", overlapping_copies},
      {"copies of nothing are allowed", empty_copies},

      {"work in a stream keeps its order", stream_order},
      {"events order two streams both ways", ping_pong},
      {"an event never recorded is complete", never_recorded},
      {"recording anew does not move a wait", record_again},
      {"a wait means the last record before it", wait_means_last_record},
      {"a destroyed event still holds its waits", event_destroyed_while_waited_for},
      {"query says not ready, then ok", query_pending},
      {"timing events tell the time between them", timing},
      {"events without a time are refused one", timing_refused},
      {"destroying a stream does its work first", destroy_with_work},
      {"the default stream is ordered by events too", default_stream},

      {"page-locked memory has every byte asked for", page_locked},
      {"page-locked memory is freed once", page_locked_arguments},
      {"managed memory keeps its bytes wherever it is", managed_round_trip},
      {"every advice is taken", managed_advice},
      {"managed calls refuse what is not managed", managed_arguments},
  };
  return all;
}

}  // namespace penstock::driver::conformance
