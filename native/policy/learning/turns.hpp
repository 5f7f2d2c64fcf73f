// SPDX-License-Identifier: Apache-2.0
// Orders that come in turns, such as those of two models of one pipeline: what is planned one by
// one would throw out what the next one needs.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace penstock::policy::learning {

class Turns {
 public:
  using Order = std::int64_t;
  static constexpr std::size_t kMost = 16;  // of a round; a generation's tokens are no turns

  // An iteration of this order is over.
  void over(Order order) {
    if (past_.size() == 2 * kMost) past_.erase(past_.begin());
    past_.push_back(order);
  }
  void forget() { past_.clear(); }

  // What comes again and again from here on, `next` first: the shortest round that the last two
  // were, or `next` alone.
  [[nodiscard]] std::vector<Order> from(Order next) const {
    std::vector<Order> all = past_;
    all.push_back(next);
    for (std::size_t round = 1; round <= kMost && 2 * round <= all.size(); ++round) {
      if (!std::equal(all.rbegin(), all.rbegin() + static_cast<std::ptrdiff_t>(round),
                      all.rbegin() + static_cast<std::ptrdiff_t>(round))) {
        continue;
      }
      std::vector<Order> turns{next};
      turns.insert(turns.end(), all.end() - static_cast<std::ptrdiff_t>(round), all.end() - 1);
      return turns;
    }
    return {next};
  }

 private:
  std::vector<Order> past_;
};

}  // namespace penstock::policy::learning
