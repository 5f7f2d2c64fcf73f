// SPDX-License-Identifier: Apache-2.0
// Pages that are there and not in use, and which of them is needed last: one in which nothing lives
// any more, else the one whose next use is foreseen last, or the one that has not been used for
// longest, whichever of the two is longer.  For a page that is foreseen nowhere, or was just used
// where it was not, what lies behind it is the best guess at what lies before it; where nothing is
// sure that goes for all.  Pure.
#pragma once

#include <array>
#include <limits>
#include <list>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "policy/learning/next_uses.hpp"

namespace penstock::policy::residency {

class IdlePages {
 public:
  using Position = learning::NextUses::Position;
  static constexpr Position kNever = std::numeric_limits<Position>::max();

  struct Last {
    PageId page;
    Position distance;  // uses until it is needed
  };

  explicit IdlePages(const learning::NextUses& uses) : uses_(uses) {}

  // It is not in use from now on; or something about it has changed.  dead: nothing lives in it.
  void add(PageId page, bool dead);
  void remove(PageId page);
  [[nodiscard]] bool has(PageId page) const {
    return nth(page) < known_.size() && known_[nth(page)].list != nullptr;
  }
  void clear();
  [[nodiscard]] std::optional<Last> needed_last();

 private:
  [[nodiscard]] bool goes_by_age(PageId page, Position next) const;
  static constexpr std::size_t kClasses = 16;
  static std::size_t class_of(PageId page) { return nth(page) % kClasses; }
  [[nodiscard]] Last foreseen_last() const;
  struct Known {
    std::list<PageId>* list = nullptr;
    std::list<PageId>::iterator at;
    Position next = learning::NextUses::kNone;
  };

  const learning::NextUses& uses_;
  std::vector<Known> known_;                                             // by page
  std::array<std::set<std::pair<Position, PageId>>, kClasses> by_next_;  // foreseen ones
  std::list<PageId> dead_, others_, foreseen_;  // each the longest unused first
};

}  // namespace penstock::policy::residency
