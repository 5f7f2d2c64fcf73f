// SPDX-License-Identifier: Apache-2.0
// How many slots are taken at every step of a cycle, with range additions and range maxima in
// O(log n): a segment tree whose additions stay at the highest nodes they cover.  Ranges may wrap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy {

class Occupancy {
 public:
  explicit Occupancy(const std::vector<std::int32_t>& initial) : steps_(initial.size()) {
    while (leaves_ < steps_) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
    for (std::size_t i = 0; i < steps_; ++i) nodes_[leaves_ + i].max = initial[i];
    for (std::size_t i = leaves_ - 1; i > 0; --i) {
      nodes_[i].max = std::max(nodes_[2 * i].max, nodes_[2 * i + 1].max);
    }
  }

  // `length` steps from `first` on; the maximum over an empty range is kNothing.
  void add(StepId first, StepId length, std::int32_t delta) {
    const auto from = nth(first);
    const std::size_t to = from + nth(length);
    add_range(root(), from, std::min(to, steps_), delta);
    if (to > steps_) add_range(root(), 0, to - steps_, delta);
  }
  [[nodiscard]] std::int32_t max(StepId first, StepId length) const {
    const auto from = nth(first);
    const std::size_t to = from + nth(length);
    const std::int32_t head = max_range(root(), from, std::min(to, steps_));
    return to > steps_ ? std::max(head, max_range(root(), 0, to - steps_)) : head;
  }
  [[nodiscard]] std::vector<std::int32_t> values() const {
    std::vector<std::int32_t> values(steps_);
    for (std::size_t i = 0; i < steps_; ++i) {
      values[i] = nodes_[leaves_ + i].max;
      for (std::size_t node = (leaves_ + i) / 2; node > 0; node /= 2)
        values[i] += nodes_[node].added;
    }
    return values;
  }

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

  void add_range(Place at, std::size_t from, std::size_t to, std::int32_t delta) {
    if (from >= at.to || to <= at.from || from >= to) return;
    Node& node = nodes_[at.node];
    if (from <= at.from && at.to <= to) {
      node.max += delta;
      node.added += delta;
      return;
    }
    add_range(at.left(), from, to, delta);
    add_range(at.right(), from, to, delta);
    node.max = std::max(nodes_[2 * at.node].max, nodes_[2 * at.node + 1].max) + node.added;
  }
  [[nodiscard]] std::int32_t max_range(Place at, std::size_t from, std::size_t to) const {
    if (from >= at.to || to <= at.from || from >= to) return kNothing;
    if (from <= at.from && at.to <= to) return nodes_[at.node].max;
    const std::int32_t below =
        std::max(max_range(at.left(), from, to), max_range(at.right(), from, to));
    // A range that meets this node meets a step of it, so `below` is a real value.
    return below + nodes_[at.node].added;
  }
  [[nodiscard]] Place root() const { return {1, 0, leaves_}; }

  std::size_t steps_;
  std::size_t leaves_ = 1;  // a power of two
  std::vector<Node> nodes_;
};

}  // namespace penstock::policy
