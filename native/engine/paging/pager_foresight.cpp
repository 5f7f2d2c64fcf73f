// SPDX-License-Identifier: Apache-2.0
// Pages of a program that announces its work, by their next uses: those that are needed last leave,
// and what is foreseen to be missing comes in ahead of its use.  The lock is held throughout.
#include <algorithm>

#include "base/undo.hpp"
#include "engine/paging/pager.hpp"

namespace penstock::engine {

namespace {

// Touched again within as many uses as a third of the slots, a page is in use all the while: no
// order of leaving that is any good has it leave.  Simulated with an eighth, a quarter, 0.35 and a
// half: below a quarter what every layer touches hides which layer it is.
constexpr SlotId kShareOfNear = 3;
constexpr policy::learning::NextUses::Position kLeastNear = 4;
// Pages brought in ahead of their use take at most such a share of the slots, but as many as hide
// what a move takes.
constexpr SlotId kShareAhead = 6;
constexpr std::size_t kLeastAhead = 5;
// In one move, which arrives as a whole: mappings take longer than the copies of small pages, and
// work waits longer for a larger move (benchmarks/results/run/moves-h200.txt).
constexpr Bytes kMoveBytes = 16 * kMiB;
constexpr std::size_t kLeastInAMove = 2;
constexpr std::size_t kMostInAMove = 4;
// Where nothing may leave for the next missing page it is looked again after so many uses.
constexpr policy::learning::NextUses::Position kLookAgain = 4;

}  // namespace

// What is needed for as many pages as there are, so that uses need no memory.
void Pager::cover_pages() {
  const auto pages = table_.pages();
  next_uses_.cover(pages);
  idle_.cover(pages);
  came_ahead_.cover(pages);
  room_for(brought_, policy::residency::LookAheadOptions{}.most + nth(pages));
  idle_.keep_together(static_cast<PageId>(pages_in_a_move()));
}

std::size_t Pager::pages_in_a_move() const {
  const std::size_t wanted =
      std::clamp<std::size_t>(kMoveBytes / pool_.chunk_bytes(), kLeastInAMove, kMostInAMove);
  return std::clamp<std::size_t>(options_.max_copy_bytes / pool_.chunk_bytes(), 1, wanted);
}

void Pager::uses(PageId page) {
  if (!paging_) return;
  came_ahead_.used(page);
  idle_.used(page);
  idle_.remove(page);
  next_uses_.use(page, std::max<Position>(kLeastNear, residents_.slots() / kShareOfNear));
}

// It is there and not in use.
void Pager::rests(PageId id) {
  const Page& page = table_.page(id);
  if (paging_ && page.backed && page.slot != kNoSlot && page.active == 0) idle_.add(id);
}

// The page leaves, or its slot is to be another's: what was foreseen of it is to be looked at
// again.
void Pager::leaves(PageId page) {
  came_ahead_.left(page);
  idle_.remove(page);
  const Position next = next_uses_.next(page);
  if (next != policy::learning::NextUses::kNone) ahead_ = std::min(ahead_, next);
}

std::optional<PageId> Pager::needed_last() {
  const auto idle = [this](PageId id) {
    const Page& page = table_.page(id);
    return page.slot != kNoSlot && page.active == 0;
  };
  for (int tries = 0; tries < 2; ++tries) {
    while (const auto last = idle_.needed_last()) {
      if (idle(*last)) return last;
      idle_.remove(*last);
    }
    // Those that were to leave, and could not, are there again.
    for (SlotId id = 0; id < residents_.slots(); ++id) {
      const PageId page = residents_.slot(id).page;
      if (page != kNoPage && table_.page(page).backed && idle(page)) idle_.add(page);
    }
  }
  return std::nullopt;
}

// For a page that is needed after so many uses; kNoSlot where nothing is needed later.  The slot
// that the page was in last needs no mapping: what is there leaves, unless that is needed
// far sooner.
SlotId Pager::slot_for(PageId id, Position distance) {
  const SlotId empty = residents_.empty_slot();
  if (empty != kNoSlot) return empty;
  const auto last = needed_last();
  if (!last) return kNoSlot;
  const Position late = idle_.lateness(*last);
  if (late <= distance) return kNoSlot;
  const SlotId home = table_.page(id).mapped;
  if (home != kNoSlot) {
    const PageId there = residents_.slot(home).page;
    if (there == kNoPage) return home;
    const Page& page = table_.page(there);
    const bool idle = page.backed && page.active == 0 && idle_.has(there);
    if (idle && idle_.lateness(there) > std::max(distance, late / 8)) return home;
  }
  return table_.page(*last).slot;
}

Status Pager::demand_other(PageId page) {
  PENSTOCK_ASSIGN(SlotId slot,
                  unmoving([&] { return Result<SlotId>(slot_for(page, Position{-1})); }));
  if (slot == kNoSlot) {
    PENSTOCK_ASSIGN(slot, unmoving([&] { return choose_slot(page); }));
  }
  const PageId there = residents_.slot(slot).page;
  if (there != kNoPage) leaves(there);
  PENSTOCK_TRY(residents_.place(page, std::span(&slot, 1)));
  counters_.demanded_pages += !table_.page(page).blank;
  return {};
}

// What is foreseen and missing comes in, neighbours in one move.  Not where the device has to stand
// still for that.
Status Pager::bring_ahead() {
  if (!next_uses_.sure() || options_.evicted == Evicted::kOnHost) return {};
  const Position place = next_uses_.place();
  if (jumps_ != next_uses_.jumps()) {
    jumps_ = next_uses_.jumps();
    ahead_ = look_again_ = place;
    brought_.clear();
  }
  ahead_ = std::max(ahead_, place);
  std::erase_if(brought_, [place](Position at) { return at < place; });
  const auto share = static_cast<std::size_t>(residents_.slots() / kShareAhead);
  const std::size_t most = std::clamp<std::size_t>(share, kLeastAhead, look_ahead_.pages());
  if (even_pace_.come_to(next_uses_.end(), residents_.slots())) look_for_missing();
  while (ahead_ < next_uses_.end() && look_again_ <= place) {
    const bool beyond = brought_.size() >= most;
    if (beyond && !even_pace_.due(pages_in_a_move(), brought_.size())) break;
    if (!missing(next_uses_.page_at(ahead_)) || !came_ahead_.next_comes()) {
      ++ahead_;
      continue;
    }
    const std::size_t room = beyond ? pages_in_a_move() : most - brought_.size();
    PENSTOCK_ASSIGN(const std::size_t pages, bring_run(room));
    if (beyond) pages == 0 ? even_pace_.none_came() : even_pace_.came(pages);
    if (beyond && pages == 0) look_again_ = place;
    if (pages == 0) break;
    for (std::size_t i = 0; i < pages; ++i, ++ahead_) {
      brought_.push_back(ahead_);
      counters_.prefetched_pages += !table_.page(next_uses_.page_at(ahead_)).blank;
    }
  }
  if (brought_.size() >= most && !residents_.moving()) look_ahead_.link_rests();
  return {};
}

// How many of the uses that are foreseen begin with a page that is not there.
void Pager::look_for_missing() {
  const Position place = next_uses_.place();
  const Position end = std::min(next_uses_.end(), place + even_pace_.reach(residents_.slots()));
  Position count = 0;
  for (Position at = place; at < end; ++at) {
    const PageId page = next_uses_.page_at(at);
    count += missing(page) && next_uses_.next(page) == at;
  }
  even_pace_.missing(count, end - place);
}

// Nothing is copied of a page in which nothing lives yet: it is mapped.  One whose uses come by
// chance comes in when they do.
bool Pager::missing(PageId id) const {
  const Page& page = table_.page(id);
  return page.slot == kNoSlot && page.backed && next_uses_.trusted(id);
}

// How many neighbours are missing there that one move can bring.
std::size_t Pager::run_from(Position at) const {
  const PageId first = next_uses_.page_at(at);
  std::size_t count = 0;
  for (; at < next_uses_.end() && count < pages_in_a_move(); ++at, ++count) {
    const PageId id = next_uses_.page_at(at);
    if (id != first + static_cast<PageId>(count) || !missing(id)) break;
    if (table_.page(id).range != table_.page(first).range) break;
  }
  return count;
}

// Those that come next, at most so many: how many there was room for.
Result<std::size_t> Pager::bring_run(std::size_t most) {
  const PageId first = next_uses_.page_at(ahead_);
  std::array<SlotId, kMostInAMove> into{};
  std::size_t count = 0;
  // All that can come in one move, or half of what is allowed, or nothing yet.
  const std::size_t half = (most + brought_.size()) / 2;
  const std::size_t run = run_from(ahead_);
  if (most < std::min(run, half) && !brought_.empty()) return count;
  most = std::min(most, run);
  for (; count < most; ++count) {
    const PageId id = first + static_cast<PageId>(count);
    if (table_.page(id).move != nullptr) break;
    const Position at = ahead_ + static_cast<Position>(count);
    const SlotId slot = slot_for(id, at - next_uses_.place());
    if (slot == kNoSlot) look_again_ = next_uses_.place() + kLookAgain;
    if (slot == kNoSlot || residents_.slot(slot).move != nullptr) break;
    if (std::find(into.begin(), into.begin() + count, slot) != into.begin() + count) break;
    const PageId there = residents_.slot(slot).page;
    if (there != kNoPage) idle_.remove(there);
    into[count] = slot;
  }
  if (count == 0) return count;
  for (std::size_t i = 0; i < count; ++i) {
    const PageId there = residents_.slot(into[i]).page;
    if (there != kNoPage) leaves(there);
  }
  Undo stay([&] {
    for (std::size_t i = 0; i < count; ++i) {
      const PageId there = residents_.slot(into[i]).page;
      if (there != kNoPage) rests(there);
    }
  });
  PENSTOCK_TRY(residents_.place(first, std::span(into.data(), count), true));
  stay.keep();
  for (std::size_t i = 0; i < count; ++i) {
    const PageId id = first + static_cast<PageId>(i);
    rests(id);
    came_ahead_.came(id);
  }
  return count;
}

}  // namespace penstock::engine
