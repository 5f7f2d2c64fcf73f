// SPDX-License-Identifier: Apache-2.0
// The memory of slots: chunks that come with their first page, many at once where many are needed,
// and go with the slots.
#include <algorithm>
#include <utility>

#include "base/undo.hpp"
#include "engine/paging/resident_set.hpp"

namespace penstock::engine {

Status ResidentSet::give_chunks(std::span<const SlotId> ids) {
  if (std::ranges::all_of(ids, [this](SlotId id) { return slot(id).chunk.has_value(); })) return {};
  std::vector<SlotId> given;
  room_for(given, ids.size());
  Undo take_back([&] { (void)take_chunks(given); });
  for (const SlotId id : ids) {
    if (slot(id).chunk) continue;
    PENSTOCK_ASSIGN(slot(id).chunk, pool_.take(pool_.chunk_bytes()));
    given.push_back(id);
  }
  if (evicted_ == Evicted::kUnmapped) PENSTOCK_TRY(give_own_addresses(given));
  take_back.keep();
  return {};
}

Status ResidentSet::give_own_addresses(std::span<const SlotId> ids) {
  for (const SlotId id : ids) {
    PENSTOCK_ASSIGN(const Addr own, own_addresses_.take());
    const Status status = driver_.map(own, pool_.chunk_bytes(), *slot(id).chunk);
    if (status.ok()) {
      slot(id).own = own;
    } else {
      own_addresses_.give_back(own);
      return status;
    }
  }
  for (auto rest = ids; !rest.empty();) {
    const auto stretch = rest.first(neighbours(rest));
    PENSTOCK_TRY(
        driver_.set_access(slot(stretch.front()).own, stretch.size() * pool_.chunk_bytes()));
    rest = rest.subspan(stretch.size());
  }
  return {};
}

// How many, from the first on, have chunks whose own addresses follow one another.
std::size_t ResidentSet::neighbours(std::span<const SlotId> ids) const {
  std::size_t count = 1;
  while (count < ids.size() && slot(ids[count - 1]).own != 0 &&
         slot(ids[count]).own == slot(ids[count - 1]).own + pool_.chunk_bytes()) {
    ++count;
  }
  return count;
}

Status ResidentSet::take_chunks(std::span<SlotId> ids) {
  std::ranges::sort(ids, {}, [this](SlotId id) { return slot(id).own; });
  Status status;
  for (std::span<const SlotId> rest = ids; !rest.empty();) {
    const auto stretch = rest.first(neighbours(rest));
    const Addr own = slot(stretch.front()).own;
    if (own != 0) PENSTOCK_TRY(driver_.unmap(own, stretch.size() * pool_.chunk_bytes()));
    for (const SlotId id : stretch) {
      if (own != 0) own_addresses_.give_back(std::exchange(slot(id).own, 0));
      if (!slot(id).chunk) continue;
      const driver::Chunk chunk = *std::exchange(slot(id).chunk, std::nullopt);
      Status released = pool_.give_back(chunk, pool_.chunk_bytes());
      if (status.ok()) status = std::move(released);
    }
    rest = rest.subspan(stretch.size());
  }
  return status;
}

Status ResidentSet::remove_slots(std::vector<SlotId> ids) {
  for (const SlotId id : ids) {
    if (slot(id).page != kNoPage || slot(id).move != nullptr) {
      return {Code::kInternal, "a slot is removed that is not empty"};
    }
    for (const Mark& mark : slot(id).busy) PENSTOCK_TRY(mark.synchronize());
    while (!slot(id).mapped.empty()) PENSTOCK_TRY(unmap_page(slot(id).mapped.back()));
  }
  PENSTOCK_TRY(take_chunks(ids));
  std::sort(ids.rbegin(), ids.rend());
  for (const SlotId id : ids) {
    const SlotId last = slots() - 1;
    if (id != last) {
      (void)settle_slot(last);
      slot(id) = std::move(slot(last));
      for (const PageId page : slot(id).mapped) table_.page(page).mapped = id;
      if (slot(id).page != kNoPage) {
        Page& page = table_.page(slot(id).page);
        page.slot = id;
        if (page.mapped == last) page.mapped = id;
      }
    }
    slots_.pop_back();
  }
  return {};
}

}  // namespace penstock::engine
