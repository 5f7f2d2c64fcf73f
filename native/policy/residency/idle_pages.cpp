// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/idle_pages.hpp"

#include <algorithm>

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
  if (nth(pages) > known_.size()) known_.resize(nth(pages));
}

void IdlePages::add(PageId page) {
  Known& known = known_[nth(page)];
  known.idle = true;
  known.fresh = false;
  if (count_ == 0) return;
  const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(count_);
  if (std::find(chosen_.begin(), end, page) != end) return;
  weigh(page);
}

void IdlePages::remove(PageId page) {
  known_[nth(page)].idle = false;
  const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto found = std::find(chosen_.begin(), end, page);
  if (found == end) return;
  *found = chosen_[--count_];
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

NextUses::Position IdlePages::lateness(PageId page) {
  const Position age = uses_.age(page);
  if (!uses_.sure() || !uses_.trusted(page)) return (kOfAge * age + uses_.interval(page)) / kOfAll;
  const Position at = next(page);
  if (at == NextUses::kNone) return age;
  const Position distance = at - uses_.place();
  if (!uses_.foreseen(page) && age < distance) return age;
  return distance - distance * reversed(page / together_) / kShare;
}

// Into the chosen ones, of which there are some, if it is needed later than one of them.
void IdlePages::weigh(PageId page) {
  std::size_t least = 0;
  Position earliest = lateness(chosen_[0]);
  for (std::size_t i = 1; i < count_; ++i) {
    const Position late = lateness(chosen_[i]);
    if (late < earliest) {
      earliest = late;
      least = i;
    }
  }
  if (lateness(page) <= earliest) return;
  if (count_ < kChosen) {
    chosen_[count_++] = page;
  } else {
    chosen_[least] = page;
  }
}

void IdlePages::choose() {
  std::array<Position, kChosen> late{};
  std::size_t least = 0;
  count_ = 0;
  chosen_at_ = uses_.end();
  chosen_jumps_ = uses_.jumps();
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (!known_[i].idle) continue;
    const auto page = static_cast<PageId>(i);
    const Position of_page = lateness(page);
    if (count_ == kChosen && of_page <= late[least]) continue;
    const std::size_t at = count_ < kChosen ? count_++ : least;
    chosen_[at] = page;
    late[at] = of_page;
    if (count_ < kChosen) continue;
    least = static_cast<std::size_t>(std::min_element(late.begin(), late.end()) - late.begin());
  }
}

std::optional<PageId> IdlePages::needed_last() {
  const bool outdated =
      uses_.end() - chosen_at_ >= static_cast<Position>(kChosen) || chosen_jumps_ != uses_.jumps();
  if (count_ == 0 || outdated) choose();
  if (count_ == 0) return std::nullopt;
  const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(count_);
  return *std::max_element(chosen_.begin(), end,
                           [this](PageId a, PageId b) { return lateness(a) < lateness(b); });
}

}  // namespace penstock::policy::residency
