// SPDX-License-Identifier: Apache-2.0
// Pages of a program that announces its work which no plan knows: those that are needed last leave,
// and what is foreseen to be missing comes in ahead of its use, in slots that are not the plan's.
// The lock is held throughout.
#include <algorithm>

#include "engine/paging/pager.hpp"

namespace penstock::engine {

namespace {

// A page that is used again within so few uses is still in use: of so many slots one, at most.
constexpr std::int64_t kNear = 32;
constexpr std::int64_t kShareOfNear = 4;
// Pages brought in ahead of their use: one in so many slots, and not fewer than that.  More take
// the room of what is needed as well, and are brought in as often as they leave for others.
constexpr std::size_t kShareAhead = 64;
constexpr std::size_t kLeastAhead = 8;

}  // namespace

void Pager::uses(PageId page) {
  idle_.remove(page);
  const auto near = std::min<std::int64_t>(kNear, residents_.slots() / kShareOfNear);
  next_uses_.use(page, near);
}

void Pager::rests(PageId id) {
  const Page& page = table_.page(id);
  if (!listed_ || page.slot == kNoSlot || page.active > 0) return;
  if (residents_.slot(page.slot).planned) return;
  listed_ = guarded([&] { return idle_.add(id, page.live == 0), Status{}; }).ok();
}

void Pager::list_idle() {
  // Where nothing is sure, what was foreseen is not gone by.
  if (listed_ && (jumps_ == next_uses_.jumps() || !next_uses_.sure())) return;
  listed_ = false;
  idle_.clear();
  std::vector<PageId> pages;
  for (SlotId slot = 0; slot < residents_.slots(); ++slot) {
    const PageId id = residents_.slot(slot).page;
    if (residents_.slot(slot).planned) continue;
    if (id != kNoPage && table_.page(id).active == 0) pages.push_back(id);
  }
  std::sort(pages.begin(), pages.end(),
            [this](PageId a, PageId b) { return next_uses_.age(a) > next_uses_.age(b); });
  for (const PageId id : pages) idle_.add(id, table_.page(id).live == 0);
  jumps_ = next_uses_.jumps();
  ahead_ = 0;
  brought_.clear();
  listed_ = true;
}

std::optional<policy::residency::IdlePages::Last> Pager::needed_last() {
  list_idle();
  while (auto last = idle_.needed_last()) {
    const Page& page = table_.page(last->page);
    const bool idle = page.slot != kNoSlot && page.active == 0;
    if (idle && !residents_.slot(page.slot).planned) return last;
    idle_.remove(last->page);
  }
  return std::nullopt;
}

// Of the slots that the plan does not name.
SlotId Pager::choose_other_slot() {
  const SlotId empty = residents_.empty_slot();
  if (empty != kNoSlot) return empty;
  const auto last = needed_last();
  if (!last) return kNoSlot;
  if (last->distance < ahead_) ahead_ = std::min(ahead_, next_uses_.place() + last->distance);
  return table_.page(last->page).slot;
}

// Of a page that may leave for one that is needed after so many uses.
SlotId Pager::slot_to_leave(std::int64_t distance) {
  const auto last = needed_last();
  if (!last || last->distance <= distance) return kNoSlot;
  const SlotId slot = table_.page(last->page).slot;
  return residents_.slot(slot).move == nullptr ? slot : kNoSlot;
}

// What is foreseen and missing comes in.  Not where the device has to stand still for that.
Status Pager::bring_ahead() {
  if (!next_uses_.sure() || options_.evicted == Evicted::kOnHost) return {};
  list_idle();
  const std::int64_t place = next_uses_.place();
  ahead_ = std::max(ahead_, place);
  while (!brought_.empty() && brought_.front() < place) brought_.pop_front();
  const std::size_t most =
      std::max(static_cast<std::size_t>(residents_.slots()) / kShareAhead, kLeastAhead);
  for (; ahead_ < next_uses_.end() && brought_.size() < most; ++ahead_) {
    const PageId id = next_uses_.page_at(ahead_);
    const Page& page = table_.page(id);
    if (page.slot != kNoSlot || !page.backed || page.blank || page.live == 0) continue;
    if (cursor_.planned() && cursor_.distance(id) != kForEver) continue;  // the plan's
    if (page.move != nullptr) return {};                                  // it is on its way out
    const SlotId empty = residents_.empty_slot();
    const SlotId slot = empty != kNoSlot ? empty : slot_to_leave(ahead_ - place);
    if (slot == kNoSlot || residents_.slot(slot).move != nullptr) return {};
    idle_.remove(residents_.slot(slot).page);
    listed_ = false;
    brought_.push_back(ahead_);
    PENSTOCK_TRY(residents_.place(id, std::span(&slot, 1), true));
    residents_.slot(slot).release = -1;
    ++counters_.prefetched_pages;
    listed_ = true;
    rests(id);
  }
  return {};
}

}  // namespace penstock::engine
