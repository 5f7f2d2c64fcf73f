// SPDX-License-Identifier: Apache-2.0
#include "engine/resident_set.hpp"

#include <algorithm>

namespace penstock::engine {

Status ResidentSet::start() {
  PENSTOCK_ASSIGN(in_stream_, driver_.create_stream());
  in_ = std::make_unique<Timeline>(driver_, *in_stream_);
  PENSTOCK_ASSIGN(out_stream_, driver_.create_stream());
  out_ = std::make_unique<Timeline>(driver_, *out_stream_);
  return {};
}

ResidentSet::~ResidentSet() {
  if (in_stream_) (void)driver_.synchronize(*in_stream_);
  if (out_stream_) (void)driver_.synchronize(*out_stream_);
  for (PageId id = 0; id < table_.pages(); ++id) {
    Page& page = table_.page(id);
    for (const Mark& mark : page.last_use) (void)mark.timeline->synchronize(mark.tick);
    page.last_use.clear();
    if (page.mapped != kNoSlot) (void)driver_.unmap(page.address, pool_.chunk_bytes());
    page.mapped = page.slot = kNoSlot;
  }
  for (Slot& slot : slots_) {
    if (slot.chunk) (void)pool_.give_back(*slot.chunk, pool_.chunk_bytes());
  }
  in_.reset();
  out_.reset();
  if (in_stream_) (void)driver_.destroy_stream(*in_stream_);
  if (out_stream_) (void)driver_.destroy_stream(*out_stream_);
}

bool ResidentSet::arrived(Tick ready) {
  const auto reached = in_->reached(ready);
  return reached.ok() && reached.value();
}

void ResidentSet::mark_used(PageId id, Mark mark, bool written) {
  Page& page = table_.page(id);
  add_mark(page.last_use, mark);
  page.dirty = page.dirty || written;
}

Status ResidentSet::synchronize_page(PageId id) {
  const Page& page = table_.page(id);
  for (const Mark& mark : page.last_use) PENSTOCK_TRY(mark.timeline->synchronize(mark.tick));
  PENSTOCK_TRY(in_->synchronize(page.ready));
  return out_->synchronize(page.written);
}

Status ResidentSet::write_back(PageId id) {
  Page& page = table_.page(id);
  PENSTOCK_TRY(in_->make_wait(*out_stream_, page.ready));
  for (const Mark& mark : page.last_use) {
    PENSTOCK_TRY(mark.timeline->make_wait(*out_stream_, mark.tick));
  }
  PENSTOCK_TRY(driver_.copy_out(page.host, page.address, page.bytes, *out_stream_));
  PENSTOCK_ASSIGN(page.written, out_->record());
  page.dirty = false;
  counters_.bytes_out += page.bytes;
  ++counters_.copies;
  return {};
}

Status ResidentSet::evict(SlotId id) {
  Slot& from = slot(id);
  if (from.page == kNoPage) return {};
  Page& page = table_.page(from.page);
  if (page.dirty) PENSTOCK_TRY(write_back(from.page));
  from.busy = page.last_use;
  // The copy in, too, must be over before another may overwrite it: it is, on the same stream.
  if (page.written != 0) add_mark(from.busy, Mark{out_.get(), page.written});
  if (strict_) stale_.push_back(from.page);
  page.slot = kNoSlot;
  from.page = kNoPage;
  return {};
}

void ResidentSet::forget_mapping(PageId id) {
  Page& page = table_.page(id);
  auto& list = slot(page.mapped).mapped;
  list.erase(std::find(list.begin(), list.end(), id));
  page.mapped = kNoSlot;
}

Status ResidentSet::unmap_page(PageId id) {
  PENSTOCK_TRY(synchronize_page(id));
  PENSTOCK_TRY(driver_.unmap(table_.page(id).address, pool_.chunk_bytes()));
  ++counters_.unmap_calls;
  forget_mapping(id);
  return {};
}

Status ResidentSet::unmap_stale() {
  for (std::size_t i = 0; i < stale_.size();) {
    const PageId id = stale_[i];
    const Page& page = table_.page(id);
    bool over = true;
    if (page.slot == kNoSlot && page.mapped != kNoSlot) {
      for (const Mark& mark : page.last_use) {
        PENSTOCK_ASSIGN(const bool reached, mark.timeline->reached(mark.tick));
        over = over && reached;
      }
      PENSTOCK_ASSIGN(const bool written, out_->reached(page.written));
      over = over && written;
      if (over) PENSTOCK_TRY(unmap_page(id));
    }
    if (over) {
      stale_[i] = stale_.back();
      stale_.pop_back();
    } else {
      ++i;
    }
  }
  return {};
}

Status ResidentSet::map_run(PageId first, std::span<const SlotId> into) {
  // Map each page that is not mapped to its slot already, then give access to each stretch of new
  // mappings at once: one SetAccess costs 26 us idle and 145-190 us while a kernel runs.
  const Bytes chunk_bytes = pool_.chunk_bytes();
  std::size_t stretch = 0;  // new mappings without access, ending before `i`
  const auto give_access = [&](std::size_t end) -> Status {
    if (stretch == 0) return {};
    const auto begin = static_cast<PageId>(end - stretch);
    const Status status =
        driver_.set_access(table_.page(first + begin).address, stretch * chunk_bytes);
    if (!status.ok()) {
      for (std::size_t i = end - stretch; i < end; ++i) {
        const PageId id = first + static_cast<PageId>(i);
        (void)driver_.unmap(table_.page(id).address, chunk_bytes);
        forget_mapping(id);
      }
    }
    ++counters_.map_calls;
    stretch = 0;
    return status;
  };
  for (std::size_t i = 0; i < into.size(); ++i) {
    const PageId id = first + static_cast<PageId>(i);
    Page& page = table_.page(id);
    Slot& target = slot(into[i]);
    if (page.mapped == into[i]) {
      PENSTOCK_TRY(give_access(i));
      continue;
    }
    Status status;
    if (page.mapped != kNoSlot) status = unmap_page(id);
    if (status.ok() && !target.chunk) {
      auto chunk = pool_.take(chunk_bytes);
      status = chunk.status();
      if (chunk.ok()) target.chunk = chunk.value();
    }
    if (status.ok()) status = driver_.map(page.address, chunk_bytes, *target.chunk);
    if (!status.ok()) {
      const Status access = give_access(i);
      return access.ok() ? status : access;
    }
    ++counters_.map_calls;
    page.mapped = into[i];
    target.mapped.push_back(id);
    ++stretch;
  }
  return give_access(into.size());
}

Status ResidentSet::place(PageId first, std::span<const SlotId> into) {
  std::vector<Mark> before;
  for (const SlotId id : into) {
    PENSTOCK_TRY(evict(id));
    for (const Mark& mark : slot(id).busy) add_mark(before, mark);
  }
  PENSTOCK_TRY(map_run(first, into));
  Bytes bytes = 0;
  for (std::size_t i = 0; i < into.size(); ++i) {
    const Page& page = table_.page(first + static_cast<PageId>(i));
    bytes += page.bytes;
    if (page.written != 0) add_mark(before, Mark{out_.get(), page.written});
  }
  for (const Mark& mark : before) PENSTOCK_TRY(mark.timeline->make_wait(*in_stream_, mark.tick));
  const Page& head = table_.page(first);
  PENSTOCK_TRY(driver_.copy_in(head.address, head.host, bytes, *in_stream_));
  PENSTOCK_ASSIGN(const Tick ready, in_->record());
  counters_.bytes_in += bytes;
  ++counters_.copies;
  for (std::size_t i = 0; i < into.size(); ++i) {
    const PageId id = first + static_cast<PageId>(i);
    Page& page = table_.page(id);
    page.slot = into[i];
    page.ready = ready;
    page.last_use.clear();
    Slot& target = slot(into[i]);
    target.page = id;
    target.busy.clear();
  }
  return {};
}

Status ResidentSet::remove_slot(SlotId id) {
  PENSTOCK_TRY(evict(id));
  for (const Mark& mark : slot(id).busy) PENSTOCK_TRY(mark.timeline->synchronize(mark.tick));
  while (!slot(id).mapped.empty()) PENSTOCK_TRY(unmap_page(slot(id).mapped.back()));
  if (slot(id).chunk) {
    const driver::Chunk chunk = *slot(id).chunk;
    slot(id).chunk.reset();
    PENSTOCK_TRY(pool_.give_back(chunk, pool_.chunk_bytes()));
  }
  const SlotId last = slots() - 1;
  if (id != last) {
    slot(id) = std::move(slot(last));
    for (const PageId page : slot(id).mapped) table_.page(page).mapped = id;
    if (slot(id).page != kNoPage) table_.page(slot(id).page).slot = id;
  }
  slots_.pop_back();
  return {};
}

}  // namespace penstock::engine
