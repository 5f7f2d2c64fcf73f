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
  // What was absent is planned again by the next iteration that has it, since the first iterations
  // of a program are often not like the others; then after eight in a row, which a use that half of
  // all have comes to once in 256; then after 64.  Each time there is a new plan.
  static constexpr int kFactor = 8, kMostInARow = 64;

  [[nodiscard]] bool has(Use use) const {
    const auto found = seen_.find(use);
    return found == seen_.end() || found->second.regular;
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
    std::ptrdiff_t regular = 0, missing = 0;
    for (auto& [use, known] : seen_) {
      known.present = std::ranges::binary_search(present, use);
      regular += known.regular;
      missing += known.regular && !known.present;
    }
    if (2 * missing > regular) seen_.clear();
    for (auto& [use, known] : seen_) {
      if (known.present) {
        known.regular |= ++known.in_a_row >= known.wanted;
      } else {
        if (known.regular) known.wanted = std::clamp(kFactor * known.wanted, 1, kMostInARow);
        known.regular = false;
        known.in_a_row = 0;
      }
    }
    for (const Use use : present) seen_.try_emplace(use);
  }

 private:
  struct Known {
    bool regular = true;
    bool present = true;
    int in_a_row = 0;
    int wanted = 0;  // iterations in a row
  };
  std::map<Use, Known> seen_;
};

}  // namespace penstock::policy::learning
