// SPDX-License-Identifier: Apache-2.0
// How many slots are taken at every step of a cycle, with range additions and range maxima in
// O(log n): a segment tree whose additions stay at the highest nodes they cover.  Ranges may wrap.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy {

class Occupancy {
 public:
  explicit Occupancy(const std::vector<std::int32_t>& initial);

  // `length` steps from `first` on; the maximum over an empty range is kNothing.
  void add(StepId first, StepId length, std::int32_t delta);
  [[nodiscard]] std::int32_t max(StepId first, StepId length) const;
  [[nodiscard]] std::vector<std::int32_t> values() const;

  static constexpr std::int32_t kNothing = INT32_MIN;

 private:
  struct Node {
    std::int32_t max = kNothing;
    std::int32_t added = 0;  // to all that is below; `max` includes it
  };
  // The node and the steps it stands for.
  struct Place {
    std::size_t node, from, to;
    [[nodiscard]] std::size_t middle() const { return (from + to) / 2; }
    [[nodiscard]] Place left() const { return {2 * node, from, middle()}; }
    [[nodiscard]] Place right() const { return {2 * node + 1, middle(), to}; }
  };

  void add_range(Place at, std::size_t from, std::size_t to, std::int32_t delta);
  [[nodiscard]] std::int32_t max_range(Place at, std::size_t from, std::size_t to) const;
  [[nodiscard]] Place root() const { return {1, 0, leaves_}; }

  std::size_t steps_;
  std::size_t leaves_ = 1;  // a power of two
  std::vector<Node> nodes_;
};

}  // namespace penstock::policy
