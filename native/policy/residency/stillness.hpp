// SPDX-License-Identifier: Apache-2.0
// Whether a page that leaves is likely to be what it was when it left last: then one launch that
// compares, and copies what differs, does, where else two are quicker.  Right or not, nothing is
// lost but time: a launch that is spared is some 10 us of the host's, but a page that did change is
// copied by one block of threads.  So a page that was expected to be the same and was not, as a
// weight is that leaves between its uses and after its update, has to be it for longer.  Pure.
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
    const bool same = std::exchange(changes_, changes) == changes && known;
    if (!same && times_ >= wanted_) wanted_ = std::min(wanted_ * kLonger, kMost);
    times_ = same ? times_ + 1 : 0;
    return times_ >= wanted_;
  }

 private:
  // Twice, because the device may not have counted yet what it was given before.
  static constexpr std::uint32_t kTimes = 2;
  static constexpr std::uint32_t kLonger = 8;  // times, after each mistake; not swept
  static constexpr std::uint32_t kMost = 1024;

  std::uint32_t changes_ = 0;
  std::uint32_t times_ = 0;
  std::uint32_t wanted_ = kTimes;
};

}  // namespace penstock::policy::residency
