// SPDX-License-Identifier: Apache-2.0
// A tick of some stream's timeline; without one, long ago.
#pragma once

#include "engine/order/timeline.hpp"

namespace penstock::engine {

struct Mark {
  Timeline* timeline = nullptr;
  Tick tick = 0;

  Status synchronize() const { return timeline ? timeline->synchronize(tick) : Status{}; }
  Result<bool> reached() const { return timeline ? timeline->reached(tick) : true; }
  Status make_wait(driver::Stream stream) const {
    return timeline ? timeline->make_wait(stream, tick) : Status{};
  }
  friend bool operator==(const Mark&, const Mark&) = default;
};

}  // namespace penstock::engine
