// SPDX-License-Identifier: Apache-2.0
// Which of many pages to give up (to *stream*) so that the others can stay all around the cycle:
// the decision that a sweep consists of.
//
// With K pages kept all around, a step has room for capacity - K others; so the number to give up
// is least when no step streams many pages.  The largest number that any step has to bear is found
// by bisection, and below it the pages are shared out in proportion to the steps' sizes: a large
// step (an embedding) keeps most of its pages and does not inflate the room that all steps pay for.
// Where some pages are used more often in a cycle than others, as a decoder's beside its encoder's,
// a step may bear more than that if fewer loads come of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/planning/quota.hpp"
#include "policy/planning/sequence.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

// Pages that are needed at the same steps.
struct StreamGroup {
  std::vector<StepId> cover;          // the steps at which a streamed member takes a slot
  std::vector<UseIndex::Id> members;  // a use of each page, by page
  std::int32_t loads = 1;             // an iteration, of a streamed member
};

class Streams {
 public:
  // `taken` is how many slots each step needs when all members of groups are resident.
  Streams(const Sequence& sequence, const UseIndex& index, std::vector<StreamGroup> groups,
          std::vector<std::int32_t> taken, std::int32_t capacity)
      : sequence_(sequence),
        index_(index),
        groups_(std::move(groups)),
        others_(std::move(taken)),
        capacity_(capacity) {
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const StreamGroup& a, const StreamGroup& b) { return rank(a) < rank(b); });
    for (const StreamGroup& group : groups_) {
      const auto members = static_cast<std::int32_t>(group.members.size());
      members_ += members;
      for (const StepId step : group.cover) others_[nth(step)] -= members;
    }
  }

  // The members to give up; those that take the fewest loads first.  Of a group they are
  // neighbouring pages, so that copies can be merged.  Fewer than needed only when the capacity is
  // less than what a step needs with all of them given up.
  [[nodiscard]] std::vector<UseIndex::Id> choose() const {
    if (members_ == 0) return {};
    std::vector<double> weight;
    for (const StreamGroup& group : groups_) {
      double sum = 0;
      for (const StepId step : group.cover) sum += index_.step_sizes()[nth(step)];
      weight.push_back(sum / static_cast<double>(group.cover.size()));
    }
    const std::int32_t level = best_level();
    Counts taken;
    if (fill(level, &weight, taken) < wanted(level)) fill(level, nullptr, taken);
    std::vector<UseIndex::Id> chosen;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (taken[g] > 0) choose_run(groups_[g], nth(taken[g]), chosen);
    }
    return chosen;
  }

 private:
  static constexpr std::int32_t kMostLevels =
      64;  // that are tried: each costs a look at all groups

  static std::tuple<std::int32_t, std::size_t, StepId> rank(const StreamGroup& group) {
    return std::tuple(group.loads, group.cover.size(), group.cover.front());
  }

  static bool same_class(const StreamGroup& a, const StreamGroup& b) {
    return a.loads == b.loads && a.cover.size() == b.cover.size();
  }

  using Counts = std::vector<std::int32_t>;  // by group

  // How many must be given up for the rest to stay, when no step may bear more than `level`.
  [[nodiscard]] std::int64_t wanted(std::int32_t level) const {
    return std::max<std::int64_t>(0, members_ - capacity_ + level);
  }

  [[nodiscard]] std::int32_t least_level() const {
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

  // Of those from the least one on, the level with the fewest loads.
  [[nodiscard]] std::int32_t best_level() const {
    const std::int32_t least = least_level();
    if (groups_.front().loads == groups_.back().loads) return least;
    std::int32_t most = least;  // with all of the largest step given up
    for (const std::int32_t size : index_.step_sizes()) most = std::max(most, size);
    most = std::min({most, capacity_, least + kMostLevels});
    std::int32_t best = least;
    std::int64_t fewest = INT64_MAX;
    Counts taken;
    for (std::int32_t level = least; level <= most; ++level) {
      if (fill(level, nullptr, taken) < wanted(level)) continue;
      std::int64_t loads = 0;
      for (std::size_t g = 0; g < groups_.size(); ++g) loads += taken[g] * groups_[g].loads;
      if (loads < fewest) {
        fewest = loads;
        best = level;
      }
    }
    return best;
  }

  // Gives up wanted(level) members, or as many as fit: class by class, within a class in proportion
  // to the weights where they are given.  Returns how many.
  std::int64_t fill(std::int32_t level, const std::vector<double>* weight, Counts& taken) const {
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

  // Gives up `count` more of a group, or as many as there are and fit.
  std::int64_t take(std::size_t group, std::int64_t count, std::int32_t level,
                    std::vector<std::int32_t>& load, Counts& taken) const {
    const std::int64_t left = std::ssize(groups_[group].members) - taken[group];
    count = std::min(count, left);
    if (count <= 0) return 0;
    const auto more =
        static_cast<std::int32_t>(std::min<std::int64_t>(count, room(group, level, load)));
    taken[group] += more;
    for (const StepId step : groups_[group].cover) load[nth(step)] += more;
    return more;
  }

  [[nodiscard]] std::int32_t room(std::size_t group, std::int32_t level,
                                  const std::vector<std::int32_t>& load) const {
    std::int32_t most = INT32_MIN;
    for (const StepId step : groups_[group].cover) most = std::max(most, load[nth(step)]);
    return std::max(0, level - most);
  }

  // The run with the fewest gaps between page numbers, then with the fewest bytes, then the first.
  void choose_run(const StreamGroup& group, std::size_t count,
                  std::vector<UseIndex::Id>& chosen) const {
    const std::vector<UseIndex::Id>& members = group.members;
    const auto page = [&](std::size_t i) { return index_.page(members[i]); };
    const auto bytes = [&](std::size_t i) {
      return static_cast<std::int64_t>(sequence_.page_bytes[nth(page(i))]);
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

  const Sequence& sequence_;
  const UseIndex& index_;
  std::vector<StreamGroup> groups_;   // by loads, then size of cover, then first step
  std::vector<std::int32_t> others_;  // slots that each step needs for pages of no group
  std::int32_t capacity_;
  std::int64_t members_ = 0;
};

}  // namespace penstock::policy
