// SPDX-License-Identifier: Apache-2.0
// Pages that are there and not in use, and which of them is needed last: the one whose next use is
// foreseen last, or the one that has not been used for longest, whichever of the two is longer.
// For a page that was just used where it was not foreseen, what lies behind it is the best guess at
// what lies before it: how long ago it was used.  Where nothing is sure, what is foreseen of a page
// does not come true, or nothing is, it is that or what a life table says of pages as old and as
// often used: a page that a router chooses often stays while another is in turn, so does one that
// it has come to choose of late, and that of a layer whose turn is a token away goes before that of
// the next one.  Whether a block lives in a page does not count: one that is dead is as a rule soon
// asked for again, and its mapping costs more than the link's time.  Pure; no memory but what
// cover() took.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/learning/next_uses.hpp"
#include "policy/residency/life_table.hpp"

namespace penstock::policy::residency {

class IdlePages {
 public:
  using Position = learning::NextUses::Position;

  explicit IdlePages(const learning::NextUses& uses) : uses_(uses) {}

  void cover(PageId pages);  // those below this number
  // So many neighbours leave and come together, where a page is small for what moving it costs.
  void keep_together(PageId pages) { together_ = pages; }
  // It is there and not in use from now on; or it has been used.
  void add(PageId page);
  void remove(PageId page);
  void used(PageId page);  // it is about to be
  [[nodiscard]] bool has(PageId page) const { return (idle_[nth(page) / kBits] & bit(page)) != 0; }
  std::optional<PageId> needed_last();
  // How many uses it will not be needed for.  Pages that are needed about as late are told apart
  // by their number: always the same ones leave, and neighbours not one after the other.  So what
  // is missing comes to be spread over the program's loop, and can come in while the rest is used.
  // Were it always the very last one, what is missing would be one stretch.
  [[nodiscard]] Position lateness(PageId page) { return lateness(page, uses_.sure()); }

 private:
  // So many are chosen at a time, and anew after as many uses: most choices are spared a look at
  // all pages.
  static constexpr std::size_t kChosen = 16;
  struct Known {
    Position next = learning::NextUses::kNone;  // as it was foreseen
    std::uint64_t jumps = 0;                    // at that time
    bool fresh = false;                         // next is of its last use, or of a later time
    bool met = false;                           // it has been used
  };
  static constexpr std::size_t kBits = 64;
  static std::uint64_t bit(PageId page) { return std::uint64_t{1} << nth(page) % kBits; }
  [[nodiscard]] Position lateness(PageId page, bool sure);
  [[nodiscard]] bool foreseen(PageId page, bool sure) const { return sure && uses_.trusted(page); }
  void note_waits();
  [[nodiscard]] Position next(PageId page);
  void choose();
  void take(PageId page, Position late);
  [[nodiscard]] std::size_t chosen(PageId page) const;
  void look_again();
  void find_earliest();

  const learning::NextUses& uses_;
  LifeTable lives_;
  std::size_t sample_ = 0;  // the latest one's remainder
  Position under_way_ = 0;
  std::vector<Known> known_;         // by page
  std::vector<PageId> met_;          // most of a heap's never are
  std::vector<std::uint64_t> idle_;  // a bit a page: most of a heap's are nowhere
  PageId together_ = 1;
  std::array<PageId, kChosen> chosen_{};
  std::array<Position, kChosen> late_{};  // theirs
  std::size_t count_ = 0;
  std::size_t earliest_ = 0;  // of the chosen ones
  Position late_at_ = 0;      // in the history
  Position chosen_at_ = 0;
  std::uint64_t chosen_jumps_ = 0;  // by then
};

}  // namespace penstock::policy::residency
