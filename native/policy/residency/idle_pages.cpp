// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/idle_pages.hpp"

#include <algorithm>
#include <bit>
#include <utility>

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
// Of so many pages one tells the life table how long it waits.  Simulated with every one, and with
// 4, 8 and 32: the same within what one differs by (benchmarks/results/simulate/life-table.txt).
constexpr std::size_t kSampled = 16;
// Where more uses lie between two choices, pages leave so seldom that nothing is noted.
constexpr IdlePages::Position kLongestWait = 256;
// A page that was used so lately, and is not known to be needed late, leaves after all others: what
// comes into its place would wait for that use.  So many uses, or such a share of the idle pages.
// Simulated with none, 4, 8 and 32: for the same bytes up to 1.07 times as long.
constexpr IdlePages::Position kUnderWay = 16;
constexpr IdlePages::Position kShareUnderWay = 16;

}  // namespace

void IdlePages::cover(PageId pages) {
  if (nth(pages) <= known_.size()) return;
  known_.resize(nth(pages));
  met_.reserve(known_.size());
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
  const Position at = foreseen(page, sure) ? next(page) : NextUses::kNone;
  if (at == NextUses::kNone) {
    const Position interval = uses_.interval(page);
    return interval == 0 ? age : std::max(age, lives_.left(age, interval));
  }
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

void IdlePages::used(PageId page) {
  if (!std::exchange(known_[nth(page)].met, true)) met_.push_back(page);
  lives_.used(uses_.age(page), uses_.interval(page));
}

// How long a sample of the pages, here or away, has waited since the last choice.
void IdlePages::note_waits() {
  const Position since = uses_.end() - chosen_at_;
  if (since > 0 && since <= kLongestWait) {
    sample_ = (sample_ + 1) % kSampled;
    for (std::size_t at = sample_; at < met_.size(); at += kSampled) {
      const PageId page = met_[at];
      const Position age = uses_.age(page), interval = uses_.interval(page);
      if (interval > 0) lives_.waited(age, interval, Position{kSampled} * std::min(since, age));
    }
  }
  lives_.tell();
}

void IdlePages::choose() {
  note_waits();
  count_ = 0;
  Position seen = 0;
  late_at_ = chosen_at_ = uses_.end();
  chosen_jumps_ = uses_.jumps();
  const bool sure = uses_.sure();
  for (std::size_t word = 0; word < idle_.size(); ++word) {
    for (std::uint64_t bits = idle_[word]; bits != 0; bits &= bits - 1) {
      const auto page = static_cast<PageId>(word * kBits + nth(std::countr_zero(bits)));
      ++seen;
      const Position late = lateness(page, sure);
      if (count_ < kChosen || late > late_[earliest_]) take(page, late);
    }
  }
  under_way_ = std::min(kUnderWay, seen / kShareUnderWay);
}

std::optional<PageId> IdlePages::needed_last() {
  const bool outdated =
      uses_.end() - chosen_at_ >= static_cast<Position>(kChosen) || chosen_jumps_ != uses_.jumps();
  if (count_ == 0 || outdated) choose();
  if (count_ == 0) return std::nullopt;
  look_again();
  const bool sure = uses_.sure();
  const auto over = [&](std::size_t i) {
    return foreseen(chosen_[i], sure) || uses_.age(chosen_[i]) >= under_way_;
  };
  std::size_t last = 0;
  for (std::size_t i = 1; i < count_; ++i) {
    if (over(i) == over(last) ? late_[i] > late_[last] : over(i)) last = i;
  }
  return chosen_[last];
}

}  // namespace penstock::policy::residency
