// SPDX-License-Identifier: Apache-2.0
// The speed of the host link, measured: page-locked copies to and from a device chunk.
#pragma once

#include "driver/driver.hpp"

namespace penstock::engine {

struct LinkSpeed {
  double in_gb_per_s = 0;   // decimal GB, host to device
  double out_gb_per_s = 0;  // device to host
};

// Copies `bytes` (rounded up to the granularity) `repeats` times each way and keeps the best.
// Leaves nothing behind.
Result<LinkSpeed> measure_link(driver::Driver& driver, Bytes bytes, int repeats);

}  // namespace penstock::engine
