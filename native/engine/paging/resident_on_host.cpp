// SPDX-License-Identifier: Apache-2.0
// Evicted pages that stay within reach: their addresses lead to their host memory, so that work
// which was not seen to touch them reads and writes what it should, over the link.
//
// A mapping cannot change under work that may use it, and any work may.  So pages leave and come
// while the device has nothing to do, one synchronous step after another, and every page that
// leaves is taken for written.  A page that arrives is compared with its host memory: something may
// have written there since it left, and its fingerprint would be of what was there before.
#include "engine/paging/resident_set.hpp"

namespace penstock::engine {

Status ResidentSet::idle() {
  if (idle_) return {};
  PENSTOCK_TRY(driver_.synchronize_device());
  idle_ = true;
  return {};
}

Status ResidentSet::map_on_host(PageId id) {
  Page& page = table_.page(id);
  if (page.on_host || page.slot != kNoSlot) return {};
  PENSTOCK_TRY(table_.give_host(page));
  PENSTOCK_TRY(driver_.map_with_access(page.address, pool_.chunk_bytes(), page.host_chunk));
  ++counters_.map_calls;
  page.on_host = true;
  page.blank = false;
  return {};
}

Status ResidentSet::unmap_from_host(PageId id) {
  PENSTOCK_TRY(idle());
  Page& page = table_.page(id);
  PENSTOCK_TRY(driver_.unmap(page.address, pool_.chunk_bytes()));
  ++counters_.unmap_calls;
  page.on_host = false;
  return {};
}

Status ResidentSet::evict_to_host(SlotId slot_id) {
  Slot& from = slot(slot_id);
  const PageId id = from.page;
  Page& page = table_.page(id);
  const bool lives = page.live > 0 || !page.backed;
  PENSTOCK_TRY(idle());
  if (lives) PENSTOCK_TRY(write_back(id));
  PENSTOCK_TRY(unmap_page(id));
  page.slot = kNoSlot;
  page.blank = !lives;
  page.last_use.clear();
  from.page = kNoPage;
  from.busy.clear();
  return lives ? map_on_host(id) : Status{};
}

Status ResidentSet::arrived(PageId first, std::span<const SlotId> into, Status placed) {
  const auto end = first + static_cast<PageId>(into.size());
  Status status = std::move(placed);
  for (PageId id = first; status.ok() && id < end; ++id) {
    if (!table_.page(id).blank) status = write_back(id);
  }
  for (PageId id = first; status.ok() && id < end; ++id) status = synchronize_page(id);
  if (!status.ok()) take_back(first, into);
  return status;
}

// Pages that did not arrive, and may have been mapped already: on the host they are as they were.
void ResidentSet::take_back(PageId first, std::span<const SlotId> into) {
  (void)driver_.synchronize(in_.front()->stream());
  (void)driver_.synchronize(out_->stream());
  for (std::size_t i = 0; i < into.size(); ++i) {
    const PageId id = first + static_cast<PageId>(i);
    Page& page = table_.page(id);
    if (page.slot != kNoSlot) slot(page.slot).page = kNoPage;
    empty_ = true;
    page.slot = kNoSlot;
    page.ready = page.written = {};
    if (page.mapped != kNoSlot && driver_.unmap(page.address, pool_.chunk_bytes()).ok()) {
      forget_mapping(id);
    }
    if (page.mapped == kNoSlot && !page.blank && page.host != nullptr) (void)map_on_host(id);
  }
}

}  // namespace penstock::engine
