// SPDX-License-Identifier: Apache-2.0
// What PyTorch's own allocator maps into its expandable segments, counted in a budget.
//
// The allocator creates and releases their memory through a table of the driver's functions,
// c10::cuda::DriverAPI.  Two entries of it are replaced by ours, found by their values, since the
// order of the table is torch's: pages leave before memory is created for which there is no room,
// and where none can leave the allocator is told that the device has none, which it answers by
// giving back what it caches, and then by its own out-of-memory error.
//
// Thread rule: any thread; torch calls under the lock of its allocator, so nothing here may wait
// for Python.
#pragma once

#include <cstddef>

#include "base/status.hpp"

namespace penstock::engine {
class SharedBudget;
}

namespace penstock::adapters {

// Whether a table has been found in this process, now or earlier.
bool watch_segments();
// The same for a table at hand; `create` and `release` are the values to look for.
bool watch_table(void** table, std::size_t words, const void* create, const void* release);
// What a device's segments have, and take from here on, counts there; null: nowhere.
Status count_segments_in(int device, engine::SharedBudget* budget);

}  // namespace penstock::adapters
