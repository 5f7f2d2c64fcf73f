// SPDX-License-Identifier: Apache-2.0
// One direction of a link on a clock that is not the machine's: when a copy would begin and end.
// One copy runs at a time; one that is asked for later goes first where it fits before others.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/units.hpp"

namespace penstock::driver {

using Ns = std::int64_t;

class ModelledLink {
 public:
  // latency: of each copy, beside its bytes.
  ModelledLink(double bytes_per_ns, Ns latency) : bytes_per_ns_(bytes_per_ns), latency_(latency) {}

  [[nodiscard]] Ns length_of(Bytes bytes) const {
    return latency_ + static_cast<Ns>(static_cast<double>(bytes) / bytes_per_ns_);
  }
  // The end of a copy that may begin at `ready`.
  Ns copy(Ns ready, Bytes bytes) {
    const Ns length = length_of(bytes);
    Ns begin = ready;
    auto next = busy_.lower_bound(ready);
    if (next != busy_.begin()) begin = std::max(begin, std::prev(next)->second);
    for (; next != busy_.end() && next->first < begin + length; ++next) {
      begin = std::max(begin, next->second);
    }
    busy_.emplace(begin, begin + length);
    return begin + length;
  }
  // No copy will be asked for that could begin before `now`.
  void forget_before(Ns now) {
    while (!busy_.empty() && busy_.begin()->second <= now) busy_.erase(busy_.begin());
  }

 private:
  double bytes_per_ns_;
  Ns latency_;
  std::map<Ns, Ns> busy_;  // begin -> end, apart from one another
};

}  // namespace penstock::driver
