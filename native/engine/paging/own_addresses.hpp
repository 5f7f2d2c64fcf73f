// SPDX-License-Identifier: Apache-2.0
// Addresses of chunks' own, beside those of the pages that they hold.  They are reserved in strips:
// chunks that are made together lie side by side, and one call gives access to them all, which
// costs 26 us idle and 145 to 190 us while a kernel runs.  Not thread-safe.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "driver/driver.hpp"

namespace penstock::engine {

class OwnAddresses {
 public:
  OwnAddresses(driver::Driver& driver, Bytes chunk_bytes)
      : driver_(driver), chunk_bytes_(chunk_bytes) {}
  ~OwnAddresses() {
    for (const Addr strip : strips_) (void)driver_.unreserve(strip, strip_bytes());
  }
  OwnAddresses(const OwnAddresses&) = delete;
  OwnAddresses& operator=(const OwnAddresses&) = delete;

  Result<Addr> take() {
    if (free_.empty()) PENSTOCK_TRY(add_strip());
    const Addr lowest = free_.back();
    free_.pop_back();
    return lowest;
  }
  // It holds no mapping.  What was taken has its place here still.
  void give_back(Addr address) {
    free_.insert(std::lower_bound(free_.begin(), free_.end(), address, std::greater<>{}), address);
  }

 private:
  // One more than are handed out: where two strips meet, no stretch goes from one into the other.
  [[nodiscard]] Bytes strip_bytes() const { return (kChunks + 1) * chunk_bytes_; }

  Status add_strip() {
    room_for(strips_, strips_.size() + 1);
    room_for(free_, (strips_.size() + 1) * kChunks);
    PENSTOCK_ASSIGN(const Addr strip, driver_.reserve(strip_bytes()));
    strips_.push_back(strip);
    for (Bytes i = kChunks; i-- > 0;) free_.push_back(strip + i * chunk_bytes_);
    return {};
  }

  static constexpr Bytes kChunks = 64;
  driver::Driver& driver_;
  const Bytes chunk_bytes_;
  std::vector<Addr> strips_;
  std::vector<Addr> free_;  // from the highest to the lowest
};

}  // namespace penstock::engine
