// SPDX-License-Identifier: Apache-2.0
#include "policy/slots.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

namespace penstock::policy {
namespace {

using Index = std::size_t;

// Steps that a span lasts beyond its first.
StepId extent(const Load& load, StepId steps) { return (load.last - load.first + steps) % steps; }

// The step, no step being crossed by fewer spans on its way in, to cut the circle at.
StepId best_cut(const std::vector<Load>& loads, const std::vector<Index>& which, StepId steps) {
  std::vector<std::int32_t> change(static_cast<std::size_t>(steps) + 1, 0);
  for (const Index i : which) {  // crosses into first + 1 .. last
    const StepId from = loads[i].first + 1;
    const StepId to = from + extent(loads[i], steps);
    ++change[static_cast<std::size_t>(std::min(from, steps))];
    --change[static_cast<std::size_t>(std::min(to, steps))];
    if (to > steps) {
      ++change[0];
      --change[static_cast<std::size_t>(to - steps)];
    }
  }
  StepId best = 0;
  std::int32_t least = INT32_MAX;
  std::int32_t crossing = 0;
  for (StepId step = 0; step < steps; ++step) {
    crossing += change[static_cast<std::size_t>(step)];
    if (crossing < least) {
      least = crossing;
      best = step;
    }
  }
  return best;
}

// Colours arcs of a circle greedily: cut where few cross, give those slots of their own, then go
// round and put every arc where it fits most tightly before the slot is wanted by a crossing one.
class ArcColouring {
 public:
  // With `lazy` a new slot is opened only when no other fits; otherwise the slot that has been free
  // for longest is taken, for distance.
  ArcColouring(const std::vector<Load>& loads, StepId steps, std::int32_t slots, bool lazy)
      : loads_(loads), steps_(steps), slots_(slots), lazy_(lazy) {}

  // Slots used, or nothing when they do not suffice.
  std::optional<std::int32_t> colour(std::vector<Index> which, std::vector<SlotId>& slot) {
    const StepId cut = best_cut(loads_, which, steps_);
    const auto rotated = [&](Index i) { return (loads_[i].first - cut + steps_) % steps_; };
    std::stable_sort(which.begin(), which.end(),
                     [&](Index a, Index b) { return rotated(a) < rotated(b); });
    for (const Index i : which) {
      const StepId end = rotated(i) + extent(loads_[i], steps_);
      if (end < steps_) continue;
      if (opened_ == slots_) return std::nullopt;
      slot[i] = opened_++;
      busy_.push({end - steps_ + 1, rotated(i), slot[i]});
    }
    while (!lazy_ && opened_ < slots_) free_.insert({steps_, 0, opened_++});
    for (const Index i : which) {
      const StepId end = rotated(i) + extent(loads_[i], steps_);
      if (end < steps_ && !place(rotated(i), end, slot[i])) return std::nullopt;
    }
    return opened_;
  }

 private:
  struct Busy {
    StepId until;   // free from this step on
    StepId wanted;  // by a crossing span; `steps` when by none
    SlotId slot;
    auto operator<=>(const Busy&) const = default;
  };

  bool place(StepId first, StepId last, SlotId& slot) {
    while (!busy_.empty() && busy_.top().until <= first) {
      free_.insert({busy_.top().wanted, busy_.top().until, busy_.top().slot});
      busy_.pop();
    }
    StepId wanted = steps_;
    if (const auto found = free_.lower_bound({last + 1, 0, 0}); found != free_.end()) {
      wanted = std::get<0>(*found);
      slot = std::get<2>(*found);
      free_.erase(found);
    } else {
      if (opened_ == slots_) return false;
      slot = opened_++;
    }
    busy_.push({last + 1, wanted, slot});
    return true;
  }

  const std::vector<Load>& loads_;
  StepId steps_;
  std::int32_t slots_;
  bool lazy_;
  std::int32_t opened_ = 0;
  std::set<std::tuple<StepId, StepId, SlotId>> free_;  // wanted, free since, slot
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy_;
};

// Puts `ring` into rounds through `slots` slots; returns the loads that outlast their round.
std::vector<Index> go_round(const std::vector<Load>& loads, const std::vector<Index>& ring,
                            StepId steps, std::int32_t slots, std::vector<SlotId>& slot) {
  const Index n = ring.size();
  const Index rounds = (n + static_cast<Index>(slots) - 1) / static_cast<Index>(slots);
  constexpr Index kNone = SIZE_MAX;
  std::vector<Index> first(static_cast<Index>(slots), kNone);
  std::vector<Index> latest(static_cast<Index>(slots), kNone);
  std::vector<Index> outlast;
  const auto meet = [&](Index before, StepId start) {
    if (loads[before].first + extent(loads[before], steps) >= start) outlast.push_back(before);
  };
  for (Index round = 0; round < rounds; ++round) {
    const Index begin = round * n / rounds;
    const Index end = (round + 1) * n / rounds;
    for (Index i = begin; i < end; ++i) {
      const Index s = i - begin;
      slot[ring[i]] = static_cast<SlotId>(s);
      if (latest[s] == kNone) {
        first[s] = ring[i];
      } else {
        meet(latest[s], loads[ring[i]].first);
      }
      latest[s] = ring[i];
    }
  }
  for (Index s = 0; s < latest.size(); ++s) {
    if (latest[s] != kNone) meet(latest[s], loads[first[s]].first + steps);
  }
  return outlast;
}

std::vector<Index> indices(const std::vector<bool>& of, bool value) {
  std::vector<Index> result;
  for (Index i = 0; i < of.size(); ++i) {
    if (of[i] == value) result.push_back(i);
  }
  return result;
}

// Rounds for the short spans, slots of their own for those that outlast a round.
std::optional<std::vector<SlotId>> assign_rounds(const std::vector<Load>& loads, StepId steps,
                                                 std::int32_t slots) {
  std::vector<SlotId> slot(loads.size(), kAnySlot);
  std::vector<bool> apart(loads.size(), false);
  std::int32_t own = 0;
  // Every pass moves spans out of the ring or settles; sweeps settle at once.
  for (int pass = 0; pass < 32 && own < slots; ++pass) {
    const std::vector<Index> outlast =
        go_round(loads, indices(apart, false), steps, slots - own, slot);
    for (const Index i : outlast) apart[i] = true;
    const std::vector<Index> long_spans = indices(apart, true);
    if (long_spans.empty()) return slot;
    std::vector<SlotId> own_slot(loads.size(), kAnySlot);
    const std::optional<std::int32_t> used =
        ArcColouring(loads, steps, slots, true).colour(long_spans, own_slot);
    if (!used) return std::nullopt;
    if (outlast.empty() && *used <= own) {
      for (const Index i : long_spans) slot[i] = slots - 1 - own_slot[i];
      return slot;
    }
    own = std::max(own, *used);
  }
  return std::nullopt;
}

}  // namespace

std::optional<SlotAssignment> assign_slots(const std::vector<Load>& loads, StepId steps,
                                           std::int32_t slots) {
  if (loads.empty()) return SlotAssignment{};
  if (auto rounds = assign_rounds(loads, steps, slots)) return SlotAssignment{*rounds, {}};
  std::vector<Index> all(loads.size());
  std::iota(all.begin(), all.end(), Index{0});
  for (const bool lazy : {false, true}) {
    std::vector<SlotId> slot(loads.size(), kAnySlot);
    if (ArcColouring(loads, steps, slots, lazy).colour(all, slot)) return SlotAssignment{slot, {}};
  }
  return std::nullopt;
}

SlotAssignment assign_turning_slots(const std::vector<Load>& loads, StepId steps,
                                    std::int32_t slots) {
  SlotAssignment result{std::vector<SlotId>(loads.size()),
                        std::vector<SlotId>(static_cast<std::size_t>(slots))};
  std::vector<Index> crossing;
  // What was loaded in the iteration before sits in the first slots when this one starts.
  using Release = std::pair<StepId, SlotId>;
  std::priority_queue<Release, std::vector<Release>, std::greater<>> busy;
  for (Index i = 0; i < loads.size(); ++i) {
    if (loads[i].last >= loads[i].first) continue;
    busy.push({loads[i].last, static_cast<SlotId>(crossing.size())});
    crossing.push_back(i);
  }
  std::deque<SlotId> free;
  for (auto s = static_cast<SlotId>(crossing.size()); s < slots; ++s) free.push_back(s);
  const auto release_before = [&](StepId step) {
    for (; !busy.empty() && busy.top().first < step; busy.pop()) free.push_back(busy.top().second);
  };
  for (Index i = 0; i < loads.size(); ++i) {
    release_before(loads[i].first);
    result.slot[i] = free.front();
    free.pop_front();
    if (loads[i].last >= loads[i].first) busy.push({loads[i].last, result.slot[i]});
  }
  release_before(steps);
  SlotId next = 0;
  for (const Index i : crossing) result.turn[static_cast<std::size_t>(result.slot[i])] = next++;
  for (const SlotId s : free) result.turn[static_cast<std::size_t>(s)] = next++;
  return result;
}

std::int64_t least_distance(const std::vector<Load>& loads) {
  SlotId most = 0;
  for (const Load& load : loads) most = std::max(most, load.slot);
  std::vector<std::int64_t> first(static_cast<std::size_t>(most) + 1, -1);
  std::vector<std::int64_t> latest(first.size(), -1);
  std::int64_t least = std::ssize(loads);
  for (std::int64_t i = 0; i < std::ssize(loads); ++i) {
    const auto slot = static_cast<std::size_t>(loads[static_cast<std::size_t>(i)].slot);
    if (latest[slot] < 0) {
      first[slot] = i;
    } else {
      least = std::min(least, i - latest[slot]);
    }
    latest[slot] = i;
  }
  for (std::size_t s = 0; s < first.size(); ++s) {
    if (first[s] >= 0) least = std::min(least, first[s] + std::ssize(loads) - latest[s]);
  }
  return least;
}

}  // namespace penstock::policy
