// SPDX-License-Identifier: Apache-2.0
#include "policy/occupancy.hpp"

#include <algorithm>

namespace penstock::policy {

Occupancy::Occupancy(const std::vector<std::int32_t>& initial) : steps_(initial.size()) {
  while (leaves_ < steps_) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
  for (std::size_t i = 0; i < steps_; ++i) nodes_[leaves_ + i].max = initial[i];
  for (std::size_t i = leaves_ - 1; i > 0; --i) {
    nodes_[i].max = std::max(nodes_[2 * i].max, nodes_[2 * i + 1].max);
  }
}

void Occupancy::add(StepId first, StepId length, std::int32_t delta) {
  const auto from = static_cast<std::size_t>(first);
  const std::size_t to = from + static_cast<std::size_t>(length);
  add_range(root(), from, std::min(to, steps_), delta);
  if (to > steps_) add_range(root(), 0, to - steps_, delta);
}

std::int32_t Occupancy::max(StepId first, StepId length) const {
  const auto from = static_cast<std::size_t>(first);
  const std::size_t to = from + static_cast<std::size_t>(length);
  const std::int32_t head = max_range(root(), from, std::min(to, steps_));
  return to > steps_ ? std::max(head, max_range(root(), 0, to - steps_)) : head;
}

std::vector<std::int32_t> Occupancy::values() const {
  std::vector<std::int32_t> values(steps_);
  for (std::size_t i = 0; i < steps_; ++i) {
    values[i] = nodes_[leaves_ + i].max;
    for (std::size_t node = (leaves_ + i) / 2; node > 0; node /= 2) values[i] += nodes_[node].added;
  }
  return values;
}

void Occupancy::add_range(Place at, std::size_t from, std::size_t to, std::int32_t delta) {
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

std::int32_t Occupancy::max_range(Place at, std::size_t from, std::size_t to) const {
  if (from >= at.to || to <= at.from || from >= to) return kNothing;
  if (from <= at.from && at.to <= to) return nodes_[at.node].max;
  const std::int32_t below =
      std::max(max_range(at.left(), from, to), max_range(at.right(), from, to));
  // A range that meets this node meets a step of it, so `below` is a real value.
  return below + nodes_[at.node].added;
}

}  // namespace penstock::policy
