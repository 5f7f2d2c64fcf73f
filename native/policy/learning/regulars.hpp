// SPDX-License-Identifier: Apache-2.0
// Which uses every iteration of a kind has, and which come and go by its data, such as experts: a
// plan is of the former alone, or it would be of those that the last iteration happened to choose.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace penstock::policy::learning {

class Regulars {
 public:
  using Use = std::int32_t;
  // What was absent once is planned again after so many iterations in a row that had it.  A use
  // that half of all iterations have comes back once in 256, and each time there is a new plan.
  static constexpr int kInARow = 8;

  [[nodiscard]] bool has(Use use) const {
    const auto found = seen_.find(use);
    return found == seen_.end() || found->second == kRegular;
  }
  [[nodiscard]] std::vector<Use> of(const std::vector<Use>& order) const {
    std::vector<Use> regular;
    std::ranges::copy_if(order, std::back_inserter(regular), [&](Use use) { return has(use); });
    return regular;
  }

  // A whole iteration is over.  One that lacks most of what was regular is of another program.
  void over(const std::vector<Use>& order) {
    std::vector<Use> present = order;
    std::ranges::sort(present);
    present.erase(std::ranges::unique(present).begin(), present.end());
    const auto is_present = [&](const auto& entry) {
      return std::ranges::binary_search(present, entry.first);
    };
    std::ptrdiff_t regular = 0, missing = 0;
    for (const auto& entry : seen_) {
      regular += entry.second == kRegular;
      missing += entry.second == kRegular && !is_present(entry);
    }
    if (2 * missing > regular) seen_.clear();
    for (auto& entry : seen_) {
      if (!is_present(entry)) {
        entry.second = 0;
      } else if (entry.second != kRegular && ++entry.second == kInARow) {
        entry.second = kRegular;
      }
    }
    for (const Use use : present) seen_.try_emplace(use, kRegular);
  }

 private:
  static constexpr int kRegular = -1;
  std::map<Use, int> seen_;  // iterations in a row that had it, of those that come and go
};

}  // namespace penstock::policy::learning
