// SPDX-License-Identifier: Apache-2.0
// Whether a page that leaves is likely to be what it was when it left last: then one pass that
// compares and copies what differs does, where else two are quicker.  Right or not, nothing is lost
// but time.  Pure.
#pragma once

#include <cstdint>
#include <utility>

namespace penstock::policy::residency {

class Stillness {
 public:
  // It leaves once more; it was found changed so often before, as far as the device has counted,
  // and `known` if it has left before at all.
  [[nodiscard]] bool likely(std::uint32_t changes, bool known) {
    const bool same = std::exchange(changes_, changes) == changes && known;
    times_ = same ? times_ + 1 : 0;
    return times_ >= kTimes;
  }

 private:
  // Twice, because the device may not have counted yet what it was given before.
  static constexpr std::uint32_t kTimes = 2;

  std::uint32_t changes_ = 0;
  std::uint32_t times_ = 0;
};

}  // namespace penstock::policy::residency
