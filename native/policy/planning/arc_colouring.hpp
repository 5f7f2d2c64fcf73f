// SPDX-License-Identifier: Apache-2.0
// Slots for spans of any length on a cycle: greedy colouring of circular arcs.
//
// The circle is cut where the fewest spans cross, and those get slots of their own.  Then it goes
// round once: a span takes, of the free slots that no crossing span wants back before it ends, one
// that is wanted back soonest.  Arcs can need more slots than ever overlap, and the least number is
// NP-hard to find; so a span that fits nowhere is split at a use, if that is allowed, and its
// second part loaded anew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/planning/schedule.hpp"
#include "policy/planning/sequence.hpp"

namespace penstock::policy {

class ArcColouring {
 public:
  using LoadIndex = std::size_t;

  // `loads` outlives the object.
  ArcColouring(const UseIndex& index, std::vector<Load>& loads) : index_(index), loads_(loads) {}

  // Sets the slots of some of the loads, opening a slot only where no other fits.  Returns how many
  // it opened, or nothing when that would be more than `slots`.
  std::optional<std::int32_t> colour_tightly(const std::vector<LoadIndex>& which,
                                             std::int32_t slots) {
    start(which);
    std::vector<std::pair<StepId, LoadIndex>> order;
    for (const LoadIndex i : which) order.emplace_back(rotated(loads_[i].first), i);
    std::sort(order.begin(), order.end());
    for (const auto& [first, i] : order) {
      const StepId end = rotated_end(loads_[i]);
      if (end >= index_.steps() || place(i, first, end)) continue;
      if (opened_ >= slots) return std::nullopt;
      free_.insert({index_.steps(), 0, opened_++});
      place(i, first, end);
    }
    return opened_ <= slots ? std::optional(opened_) : std::nullopt;
  }

  // Sets the slots of all loads; of equal slots the one that has been free for longest is taken, so
  // that its copy can start early.  Splits spans where it must; the parts split off are at the end
  // of the loads.  No more than `slots` spans may overlap at any step.
  void colour_all(std::int32_t slots) {
    std::vector<LoadIndex> all(loads_.size());
    std::iota(all.begin(), all.end(), LoadIndex{0});
    start(all);
    while (opened_ < slots) free_.insert({index_.steps(), 0, opened_++});
    using Due = std::pair<StepId, LoadIndex>;
    std::vector<Due> order;
    for (const LoadIndex i : all) order.emplace_back(rotated(loads_[i].first), i);
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due(std::greater<>{},
                                                                   std::move(order));
    for (; !due.empty();) {
      const auto [first, i] = due.top();
      due.pop();
      const StepId end = rotated_end(loads_[i]);
      if (end >= index_.steps() || place(i, first, end)) continue;
      // No more spans overlap than there are slots, so one is free now, and wanted back later.
      const StepId wanted = std::get<0>(*free_.rbegin());
      const LoadIndex tail = split(i, wanted);
      due.emplace(rotated(loads_[tail].first), tail);
      place(i, first, rotated_end(loads_[i]));
    }
  }

 private:
  struct Busy {
    StepId until;   // free from this step on
    StepId wanted;  // by a crossing span; the number of steps when by none
    SlotId slot;
    auto operator<=>(const Busy&) const = default;
  };
  using Free = std::set<std::tuple<StepId, StepId, SlotId>>;  // wanted, free since, slot

  // Steps from the cut on.
  [[nodiscard]] StepId rotated(StepId step) const {
    return (step - cut_ + index_.steps()) % index_.steps();
  }

  [[nodiscard]] StepId rotated_end(const Load& load) const {
    const StepId extent = (load.last - load.first + index_.steps()) % index_.steps();
    return rotated(load.first) + extent;
  }

  [[nodiscard]] StepId best_cut(const std::vector<LoadIndex>& which) const {
    const StepId steps = index_.steps();
    std::vector<std::int32_t> change(nth(steps) + 1, 0);
    const auto add = [&](StepId step, std::int32_t delta) {
      change[nth(std::min(step, steps))] += delta;
    };
    for (const LoadIndex i : which) {  // is carried into the steps first + 1 .. last
      const Load& load = loads_[i];
      add(load.first + 1, 1);
      add(load.last + 1, -1);
      if (load.last < load.first) add(0, 1);
    }
    StepId best = 0;
    std::int32_t least = INT32_MAX;
    std::int32_t crossing = 0;
    for (StepId step = 0; step < steps; ++step) {
      crossing += change[nth(step)];
      if (crossing < least) {
        least = crossing;
        best = step;
      }
    }
    return best;
  }

  // The spans that cross the cut sit in slots of their own when the round starts.
  void start(const std::vector<LoadIndex>& which) {
    cut_ = best_cut(which);
    opened_ = 0;
    free_.clear();
    busy_ = {};
    for (const LoadIndex i : which) {
      const StepId end = rotated_end(loads_[i]);
      if (end < index_.steps()) continue;
      loads_[i].slot = opened_++;
      busy_.push({end - index_.steps() + 1, rotated(loads_[i].first), loads_[i].slot});
    }
  }

  bool place(LoadIndex load, StepId first, StepId last) {
    release_before(first);
    const auto found = free_.lower_bound({last + 1, 0, 0});
    if (found == free_.end()) return false;
    const auto [wanted, since, slot] = *found;
    loads_[load].slot = slot;
    busy_.push({last + 1, wanted, slot});
    free_.erase(found);
    return true;
  }

  void release_before(StepId step) {
    for (; !busy_.empty() && busy_.top().until <= step; busy_.pop()) {
      free_.insert({busy_.top().wanted, busy_.top().until, busy_.top().slot});
    }
  }

  // Ends the span at its last use before step `before` of the round; the rest becomes a load.
  LoadIndex split(LoadIndex load, StepId before) {
    Load& head = loads_[load];
    UseIndex::Id use = index_.find(head.page, head.first);
    while (rotated(index_.step(index_.next(use))) < before) use = index_.next(use);
    const Load tail{head.page, index_.step(index_.next(use)), head.last, kAnySlot};
    head.last = index_.step(use);
    loads_.push_back(tail);
    return loads_.size() - 1;
  }

  const UseIndex& index_;
  std::vector<Load>& loads_;
  StepId cut_ = 0;
  SlotId opened_ = 0;
  Free free_;
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy_;
};

}  // namespace penstock::policy
