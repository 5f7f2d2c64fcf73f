// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/idle_pages.hpp"

#include <algorithm>
#include <bit>

namespace penstock::policy::residency {

using learning::NextUses;

namespace {

// The bits of a number below 16, the last one first: numbers in this order are never neighbours.
constexpr IdlePages::Position reversed(PageId i) {
  return (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3;
}

// Of sixteen pages that are needed at the same time the last to leave counts for a quarter of the
// first.  Simulated with an eighth and a sixteenth, on recordings of eight programs: little
// difference for most, but an encoder and a decoder in turns take up to 1.3 times as long.
constexpr IdlePages::Position kShare = 20;
// Of a page's age, and of that and its interval.  Simulated on programs whose experts a router
// chooses, within 1.25, 1.5, 2 and 4: a half of each takes LRU's time up to 1.24 times where half
// of a token's experts are the next one's as well, this up to 1.09; two thirds up to 1.13; ages
// alone LRU's time or more for all of them.
constexpr IdlePages::Position kOfAge = 3;
constexpr IdlePages::Position kOfAll = 4;

}  // namespace

void IdlePages::cover(PageId pages) {
  if (nth(pages) <= known_.size()) return;
  known_.resize(nth(pages));
  idle_.resize(known_.size() / kBits + 1);
}

void IdlePages::add(PageId page) {
  known_[nth(page)].fresh = false;
  idle_[nth(page) / kBits] |= bit(page);
  if (count_ == 0 || chosen(page) < count_) return;
  look_again();
  const Position late = lateness(page, uses_.sure());
  if (late > late_[earliest_]) take(page, late);
}

void IdlePages::remove(PageId page) {
  idle_[nth(page) / kBits] &= ~bit(page);
  const std::size_t found = chosen(page);
  if (found == count_) return;
  chosen_[found] = chosen_[--count_];
  late_[found] = late_[count_];
  find_earliest();
}

// Where it is among the chosen ones; their number if it is not.
std::size_t IdlePages::chosen(PageId page) const {
  const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(count_);
  return static_cast<std::size_t>(std::find(chosen_.begin(), end, page) - chosen_.begin());
}

void IdlePages::find_earliest() {
  const auto end = late_.begin() + static_cast<std::ptrdiff_t>(count_);
  earliest_ = static_cast<std::size_t>(std::min_element(late_.begin(), end) - late_.begin());
}

NextUses::Position IdlePages::next(PageId page) {
  Known& known = known_[nth(page)];
  if (!known.fresh || known.jumps != uses_.jumps() || known.next < uses_.place()) {
    known.next = uses_.next(page);
    known.jumps = uses_.jumps();
    known.fresh = true;
  }
  return known.next;
}

NextUses::Position IdlePages::lateness(PageId page, bool sure) {
  const Position age = uses_.age(page);
  if (!sure || !uses_.trusted(page)) return (kOfAge * age + uses_.interval(page)) / kOfAll;
  const Position at = next(page);
  if (at == NextUses::kNone) return age;
  const Position distance = at - uses_.place();
  if (!uses_.foreseen(page) && age < distance) return age;
  return distance - distance * reversed(page / together_) / kShare;
}

// Into the chosen ones, if need be in the place of the one that is needed first.
void IdlePages::take(PageId page, Position late) {
  const std::size_t at = count_ < kChosen ? count_++ : earliest_;
  chosen_[at] = page;
  late_[at] = late;
  find_earliest();
}

// At the chosen ones: between uses nothing changes.
void IdlePages::look_again() {
  if (late_at_ == uses_.end()) return;
  late_at_ = uses_.end();
  const bool sure = uses_.sure();
  for (std::size_t i = 0; i < count_; ++i) late_[i] = lateness(chosen_[i], sure);
  find_earliest();
}

void IdlePages::choose() {
  count_ = 0;
  late_at_ = chosen_at_ = uses_.end();
  chosen_jumps_ = uses_.jumps();
  const bool sure = uses_.sure();
  for (std::size_t word = 0; word < idle_.size(); ++word) {
    for (std::uint64_t bits = idle_[word]; bits != 0; bits &= bits - 1) {
      const auto page = static_cast<PageId>(word * kBits + nth(std::countr_zero(bits)));
      const Position late = lateness(page, sure);
      if (count_ < kChosen || late > late_[earliest_]) take(page, late);
    }
  }
}

std::optional<PageId> IdlePages::needed_last() {
  const bool outdated =
      uses_.end() - chosen_at_ >= static_cast<Position>(kChosen) || chosen_jumps_ != uses_.jumps();
  if (count_ == 0 || outdated) choose();
  if (count_ == 0) return std::nullopt;
  look_again();
  const auto end = late_.begin() + static_cast<std::ptrdiff_t>(count_);
  return chosen_[nth(std::max_element(late_.begin(), end) - late_.begin())];
}

}  // namespace penstock::policy::residency
