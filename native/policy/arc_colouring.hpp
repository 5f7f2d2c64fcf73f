// SPDX-License-Identifier: Apache-2.0
// Slots for spans of any length on a cycle: greedy colouring of circular arcs.
//
// The circle is cut where the fewest spans cross, and those get slots of their own.  Then it goes
// round once: a span takes, of the free slots that no crossing span wants back before it ends, one
// that is wanted back soonest.  Arcs can need more slots than ever overlap, and the least number is
// NP-hard to find; so a span that fits nowhere is split at a use, if that is allowed, and its
// second part loaded anew.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "policy/schedule.hpp"
#include "policy/sequence.hpp"

namespace penstock::policy {

class ArcColouring {
 public:
  using LoadIndex = std::size_t;

  // `loads` outlives the object.
  ArcColouring(const UseIndex& index, std::vector<Load>& loads) : index_(index), loads_(loads) {}

  // Sets the slots of some of the loads, opening a slot only where no other fits.  Returns how many
  // it opened, or nothing when that would be more than `slots`.
  std::optional<std::int32_t> colour_tightly(const std::vector<LoadIndex>& which,
                                             std::int32_t slots);

  // Sets the slots of all loads; of equal slots the one that has been free for longest is taken, so
  // that its copy can start early.  Splits spans where it must; the parts split off are at the end
  // of the loads.  No more than `slots` spans may overlap at any step.
  void colour_all(std::int32_t slots);

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
  [[nodiscard]] StepId rotated_end(const Load& load) const;
  [[nodiscard]] StepId best_cut(const std::vector<LoadIndex>& which) const;
  void start(const std::vector<LoadIndex>& which);
  bool place(LoadIndex load, StepId first, StepId last);
  void take(LoadIndex load, StepId last, Free::iterator free);
  void release_before(StepId step);
  LoadIndex split(LoadIndex load, StepId before);

  const UseIndex& index_;
  std::vector<Load>& loads_;
  StepId cut_ = 0;
  SlotId opened_ = 0;
  Free free_;
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy_;
};

}  // namespace penstock::policy
