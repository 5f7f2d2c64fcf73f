// SPDX-License-Identifier: Apache-2.0
// The pager's room: how many slots the budget allows, giving some back, and bringing pieces in or
// out on request.
#include <algorithm>
#include <limits>
#include <string>

#include "driver/text.hpp"
#include "engine/pager.hpp"

namespace penstock::engine {

using driver::size_text;

SlotId Pager::slots_for(Bytes budget) const {
  const Bytes pinned = table_.pinned_bytes();
  const Bytes room = budget > pinned ? (budget - pinned) / pool_.chunk_bytes() : 0;
  return static_cast<SlotId>(std::min<Bytes>(room, static_cast<Bytes>(table_.pages())));
}

SlotId Pager::largest_use() const {
  std::size_t largest = 0;
  for (const Use& use : uses_) largest = std::max(largest, use.pages.size());
  if (cursor_.planned()) {
    largest = std::max(largest, static_cast<std::size_t>(policy::smallest_pool(sequence_)));
  }
  return static_cast<SlotId>(largest);
}

Bytes Pager::smallest() {
  const std::lock_guard lock(mutex_);
  const auto slots = std::max<SlotId>(largest_use(), 1);
  return table_.pinned_bytes() + static_cast<Bytes>(slots) * pool_.chunk_bytes();
}

// Bring the number of slots to what the budget allows, giving back the emptiest and least needed.
Status Pager::fit_slots() {
  const SlotId wanted = slots_for(pool_.budget());
  if (residents_.slots() < wanted) residents_.add_slots(wanted - residents_.slots());
  while (residents_.slots() > wanted) {
    SlotId victim = kNoSlot;
    std::int64_t best = -1;
    for (SlotId id = 0; id < residents_.slots(); ++id) {
      const Slot& slot = residents_.slot(id);
      std::int64_t score = kForEver;
      if (slot.page != kNoPage) {
        if (table_.page(slot.page).active > 0) continue;
        score = slot.release == kForEver ? 0 : 1 + cursor_.distance(slot.page) / 2;
      }
      if (score > best) {
        best = score;
        victim = id;
      }
    }
    if (victim == kNoSlot) {
      return Status(Code::kOutOfMemory, "every page is in use: the budget cannot shrink now");
    }
    PENSTOCK_TRY(residents_.remove_slot(victim));
  }
  return {};
}

Status Pager::copy_pinned(const Range& range, Addr address, Bytes bytes, bool in) {
  std::byte* host = range.host + (address - range.address);
  PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
  Status status;
  for (auto& [other, line] : timelines_) {
    if (status.ok()) status = line->synchronize(line->latest());
  }
  if (status.ok()) {
    status = in ? driver_.copy_in(address, host, bytes, stream)
                : driver_.copy_out(host, address, bytes, stream);
  }
  if (status.ok()) status = driver_.synchronize(stream);
  (void)driver_.destroy_stream(stream);
  if (status.ok()) (in ? counters_.bytes_in : counters_.bytes_out) += bytes;
  return status;
}

Status Pager::fetch(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return Status(Code::kInvalidArgument, "fetch outside every range");
  if (range->kind == RangeKind::kOnHost) return {};
  if (range->kind == RangeKind::kPinned) return copy_pinned(*range, address, bytes, true);
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    if (table_.page(id).slot == kNoSlot) PENSTOCK_TRY(demand(id));
  }
  for (PageId id = first; id <= last; ++id) PENSTOCK_TRY(residents_.synchronize_page(id));
  return {};
}

Status Pager::flush(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return Status(Code::kInvalidArgument, "flush outside every range");
  if (range->kind == RangeKind::kOnHost) return {};
  if (range->kind == RangeKind::kPinned) return copy_pinned(*range, address, bytes, false);
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    if (table_.page(id).dirty) PENSTOCK_TRY(residents_.write_back(id));
  }
  for (PageId id = first; id <= last; ++id) PENSTOCK_TRY(residents_.synchronize_page(id));
  return {};
}

Status Pager::forget(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return Status(Code::kInvalidArgument, "forget outside every range");
  if (range->kind != RangeKind::kPaged) return {};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    if (page.address < address || page.address + page.bytes > address + bytes) continue;
    page.dirty = false;
    page.blank = true;
  }
  return {};
}

Status Pager::resize(Bytes budget) {
  const auto giving = alone();
  const std::lock_guard lock(mutex_);
  if (slots_for(budget) < std::min<SlotId>(largest_use(), table_.pages())) {
    return Status(Code::kOutOfMemory,
                  "a budget of " + size_text(budget) + " is below the smallest that works, " +
                      size_text(table_.pinned_bytes() +
                                static_cast<Bytes>(largest_use()) * pool_.chunk_bytes()));
  }
  pool_.set_budget(budget);
  const SlotId before = residents_.slots();
  PENSTOCK_TRY(fit_slots());
  if (residents_.slots() != before && cursor_.planned()) {
    PENSTOCK_TRY(make_plan());
    return issue_loads();
  }
  return {};
}

}  // namespace penstock::engine
