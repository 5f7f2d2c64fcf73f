// SPDX-License-Identifier: Apache-2.0
#include "policy/streams.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "policy/quota.hpp"

namespace penstock::policy {
namespace {

auto rank(const StreamGroup& group) {
  return std::tuple(group.loads, group.cover.size(), group.cover.front());
}

bool same_class(const StreamGroup& a, const StreamGroup& b) {
  return a.loads == b.loads && a.cover.size() == b.cover.size();
}

}  // namespace

Streams::Streams(const Sequence& sequence, const UseIndex& index, std::vector<StreamGroup> groups,
                 std::vector<std::int32_t> others, std::int32_t capacity)
    : sequence_(sequence),
      index_(index),
      groups_(std::move(groups)),
      others_(std::move(others)),
      capacity_(capacity) {
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const StreamGroup& a, const StreamGroup& b) { return rank(a) < rank(b); });
  for (const StreamGroup& group : groups_) members_ += std::ssize(group.members);
}

// How many must be given up for the rest to stay, when no step may bear more than `level`.
std::int64_t Streams::wanted(std::int32_t level) const {
  return std::max<std::int64_t>(0, members_ - capacity_ + level);
}

std::int32_t Streams::room(std::size_t group, std::int32_t level,
                           const std::vector<std::int32_t>& load) const {
  std::int32_t most = INT32_MIN;
  for (const StepId step : groups_[group].cover) {
    most = std::max(most, load[static_cast<std::size_t>(step)]);
  }
  return std::max(0, level - most);
}

// Gives up `count` more of a group, or as many as there are and fit.
std::int64_t Streams::take(std::size_t group, std::int64_t count, std::int32_t level,
                           std::vector<std::int32_t>& load, Counts& taken) const {
  const std::int64_t left = std::ssize(groups_[group].members) - taken[group];
  count = std::min(count, left);
  if (count <= 0) return 0;
  const auto more =
      static_cast<std::int32_t>(std::min<std::int64_t>(count, room(group, level, load)));
  taken[group] += more;
  for (const StepId step : groups_[group].cover) load[static_cast<std::size_t>(step)] += more;
  return more;
}

// Gives up wanted(level) members, or as many as fit: class by class, within a class in proportion
// to the weights where they are given.  Returns how many.
std::int64_t Streams::fill(std::int32_t level, const std::vector<double>* weight,
                           Counts& taken) const {
  taken.assign(groups_.size(), 0);
  std::vector<std::int32_t> load(others_);
  const std::int64_t total = wanted(level);
  std::int64_t given = 0;
  for (std::size_t begin = 0, end = 0; begin < groups_.size() && given < total; begin = end) {
    while (end < groups_.size() && same_class(groups_[begin], groups_[end])) ++end;
    if (weight != nullptr) {
      std::vector<std::int32_t> limit;
      for (std::size_t g = begin; g < end; ++g) {
        limit.push_back(
            std::min(room(g, level, load), static_cast<std::int32_t>(groups_[g].members.size())));
      }
      const auto first = weight->begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = weight->begin() + static_cast<std::ptrdiff_t>(end);
      const std::vector<std::int32_t> share = share_out(limit, {first, last}, total - given);
      for (std::size_t g = begin; g < end; ++g) {
        given += take(g, share[g - begin], level, load, taken);
      }
    }
    // Groups of one class can compete for the room of a step; what that left over.
    for (std::size_t g = begin; g < end && given < total; ++g) {
      given += take(g, total - given, level, load, taken);
    }
  }
  return given;
}

std::int32_t Streams::least_level() const {
  std::int32_t low = *std::max_element(others_.begin(), others_.end());
  std::int32_t high = std::max(low, capacity_);
  Counts taken;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (fill(middle, nullptr, taken) >= wanted(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The run with the fewest gaps between page numbers, then with the fewest bytes, then the first.
void Streams::choose_run(const StreamGroup& group, std::size_t count,
                         std::vector<UseIndex::Id>& chosen) const {
  const std::vector<UseIndex::Id>& members = group.members;
  const auto page = [&](std::size_t i) { return index_.page(members[i]); };
  const auto bytes = [&](std::size_t i) {
    return static_cast<std::int64_t>(sequence_.page_bytes[static_cast<std::size_t>(page(i))]);
  };
  const auto broken = [&](std::size_t i) { return page(i) != page(i - 1) + 1 ? 1 : 0; };
  std::pair<std::int64_t, std::int64_t> cost{0, 0};
  std::pair<std::int64_t, std::int64_t> best_cost{INT64_MAX, 0};
  std::size_t best = 0;
  for (std::size_t end = 0; end < members.size(); ++end) {
    cost.second += bytes(end);
    if (count > 1 && end > 0) cost.first += broken(end);
    if (end >= count) {
      cost.second -= bytes(end - count);
      if (count > 1) cost.first -= broken(end - count + 1);
    }
    if (end + 1 >= count && cost < best_cost) {
      best_cost = cost;
      best = end + 1 - count;
    }
  }
  for (std::size_t i = best; i < best + count; ++i) chosen.push_back(members[i]);
}

std::vector<UseIndex::Id> Streams::choose(const std::vector<double>& step_weight) const {
  if (members_ == 0) return {};
  std::vector<double> weight;
  for (const StreamGroup& group : groups_) {
    double sum = 0;
    for (const StepId step : group.cover) sum += step_weight[static_cast<std::size_t>(step)];
    weight.push_back(sum / static_cast<double>(group.cover.size()));
  }
  const std::int32_t level = least_level();
  Counts taken;
  if (fill(level, &weight, taken) < wanted(level)) fill(level, nullptr, taken);
  std::vector<UseIndex::Id> chosen;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (taken[g] > 0) choose_run(groups_[g], static_cast<std::size_t>(taken[g]), chosen);
  }
  return chosen;
}

}  // namespace penstock::policy
