// SPDX-License-Identifier: Apache-2.0
// Whether a page that leaves is likely to be what it was when it left last: then it is compared,
// and copied only if it differs; else it is copied at once, by the copy engine, and compared
// behind. Right or not, nothing is lost but time: that of a copy in vain, or of one by a block of
// threads. What has left once is expected to be the same, as most is that programs only read.  A
// page that was expected to be it and was not, as a weight is that leaves between its uses and
// after its update, has to be it for longer each time.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace penstock::policy::residency {

class Stillness {
 public:
  // It leaves once more; it was found changed so often before, as far as the device has counted,
  // and `known` if it has left before at all.
  [[nodiscard]] bool likely(std::uint32_t changes, bool known) {
    const bool same = std::exchange(changes_, changes) == changes || !known;
    if (!same && times_ >= wanted_) wanted_ = std::clamp(wanted_ * kLonger, kTimes, kMost);
    times_ = same ? times_ + 1 : 0;
    return known && times_ >= wanted_;
  }

 private:
  // Twice, because the device may not have counted yet what it was given before.
  static constexpr std::uint32_t kTimes = 2;
  static constexpr std::uint32_t kLonger = 8;  // times, after each mistake; not swept
  static constexpr std::uint32_t kMost = 1024;

  std::uint32_t changes_ = 0;
  std::uint32_t times_ = 0;
  std::uint32_t wanted_ = 0;
};

}  // namespace penstock::policy::residency
