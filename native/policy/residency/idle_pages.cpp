// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/idle_pages.hpp"

#include <algorithm>

namespace penstock::policy::residency {

using learning::NextUses;

namespace {

// The bits of a number below 16, the last one first: numbers in this order are never neighbours.
constexpr std::size_t reversed(std::size_t i) {
  return (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3;
}

}  // namespace

void IdlePages::add(PageId page, bool dead) {
  if (nth(page) >= known_.size()) known_.resize(nth(page) + 1);
  remove(page);
  Position next = dead ? NextUses::kNone : uses_.next(page);
  if (goes_by_age(page, next)) next = NextUses::kNone;
  if (next != NextUses::kNone) by_next_[class_of(page)].emplace(next, page);
  std::list<PageId>& list = dead ? dead_ : next == NextUses::kNone ? others_ : foreseen_;
  // As a rule behind all others.
  auto before = list.end();
  while (before != list.begin() && uses_.age(*std::prev(before)) < uses_.age(page)) --before;
  known_[nth(page)] = {&list, list.insert(before, page), next};
}

bool IdlePages::goes_by_age(PageId page, Position next) const {
  return next == NextUses::kNone ||
         (!uses_.foreseen(page) && uses_.age(page) < next - uses_.place());
}

void IdlePages::remove(PageId page) {
  if (!has(page)) return;
  Known& known = known_[nth(page)];
  if (known.next != NextUses::kNone) by_next_[class_of(page)].erase({known.next, page});
  std::exchange(known.list, nullptr)->erase(known.at);
}

void IdlePages::clear() {
  for (auto& each : by_next_) each.clear();
  for (auto* list : {&dead_, &others_, &foreseen_}) list->clear();
  known_.clear();
}

std::optional<IdlePages::Last> IdlePages::needed_last() {
  if (!dead_.empty()) return Last{dead_.front(), kNever};
  const bool sure = uses_.sure();
  // What was left out is needed another time.
  for (auto& each : by_next_) {
    while (sure && !each.empty() && each.begin()->first < uses_.place())
      add(each.begin()->second, false);
  }
  while (sure && !others_.empty() && !goes_by_age(others_.front(), uses_.next(others_.front()))) {
    add(others_.front(), false);
  }
  std::optional<Last> last;
  if (!others_.empty()) last = {others_.front(), uses_.age(others_.front())};
  if (foreseen_.empty()) return last;
  Last foreseen{foreseen_.front(), uses_.age(foreseen_.front())};
  if (sure) foreseen = foreseen_last();
  return last && last->distance >= foreseen.distance ? last : foreseen;
}

// Of pages that are needed about as late as the last, always the same, and neighbours not one after
// the other: so what is missing comes to be spread over the program's loop, and can come in while
// the rest is used.  Were it always the last one, what is missing would be one stretch.
IdlePages::Last IdlePages::foreseen_last() const {
  Position furthest = 0;
  for (const auto& each : by_next_) {
    if (!each.empty()) furthest = std::max(furthest, each.rbegin()->first);
  }
  const Position most = furthest - uses_.place();
  for (std::size_t i = 0; i < kClasses; ++i) {
    const auto& each = by_next_[reversed(i)];
    if (each.empty()) continue;
    const auto& [next, page] = *each.rbegin();
    if (2 * (next - uses_.place()) >= most) return {page, next - uses_.place()};
  }
  return {};
}

}  // namespace penstock::policy::residency
