// SPDX-License-Identifier: Apache-2.0
#include "engine/resident_set.hpp"

#include <algorithm>

namespace penstock::engine {

Status ResidentSet::start() {
  for (auto& line : in_) {
    PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
    line = std::make_unique<Timeline>(driver_, stream);
  }
  PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
  out_ = std::make_unique<Timeline>(driver_, stream);
  return {};
}

ResidentSet::~ResidentSet() {
  for (const auto& line : in_) {
    if (line) (void)driver_.synchronize(line->stream());
  }
  if (out_) (void)driver_.synchronize(out_->stream());
  for (PageId id = 0; id < table_.pages(); ++id) {
    Page& page = table_.page(id);
    for (const Mark& mark : page.last_use) (void)mark.synchronize();
    if (page.mapped != kNoSlot || page.on_host) {
      (void)driver_.unmap(page.address, pool_.chunk_bytes());
    }
    page.mapped = page.slot = kNoSlot;
    page.on_host = false;
  }
  for (Slot& slot : slots_) {
    if (slot.chunk) (void)pool_.give_back(*slot.chunk, pool_.chunk_bytes());
  }
  in_.push_back(std::move(out_));
  for (auto& line : in_) {
    if (!line) continue;
    const driver::Stream stream = line->stream();
    line.reset();
    (void)driver_.destroy_stream(stream);
  }
}

bool ResidentSet::freed_together(SlotId a, SlotId b) {
  const PageId in_a = slot(a).page;
  const PageId in_b = slot(b).page;
  if (in_a == kNoPage || in_b == kNoPage) return in_a == in_b;
  return table_.page(in_a).last_use == table_.page(in_b).last_use;
}

void ResidentSet::mark_used(PageId id, Mark mark, bool written) {
  Page& page = table_.page(id);
  add_mark(page.last_use, mark);
  page.dirty = page.dirty || written;
  page.blank = page.blank && !written;
}

Status ResidentSet::synchronize_page(PageId id) {
  const Page& page = table_.page(id);
  for (const Mark& mark : page.last_use) PENSTOCK_TRY(mark.synchronize());
  PENSTOCK_TRY(page.ready.synchronize());
  return page.written.synchronize();
}

Status ResidentSet::write_back(PageId id) {
  Page& page = table_.page(id);
  PENSTOCK_TRY(table_.give_host(page));
  // Its uses waited for its copy.
  if (page.last_use.empty()) PENSTOCK_TRY(page.ready.make_wait(out_->stream()));
  for (const Mark& mark : page.last_use) PENSTOCK_TRY(mark.make_wait(out_->stream()));
  if (page.fingerprint != nullptr) {  // that work may have written it does not mean that it did
    PENSTOCK_TRY(driver_.copy_out_changed(page.host, page.address, page.bytes, page.fingerprint,
                                          out_->stream()));
  } else {
    PENSTOCK_TRY(driver_.copy_out(page.host, page.address, page.bytes, out_->stream()));
    counters_.bytes_out += page.bytes;
    ++counters_.copies;
  }
  Result<Tick> recorded = out_->record();
  if (!recorded.ok()) (void)driver_.synchronize(out_->stream());
  PENSTOCK_ASSIGN(const Tick tick, std::move(recorded));
  page.written = Mark{out_.get(), tick};
  page.dirty = false;
  return {};
}

Status ResidentSet::evict(SlotId id) {
  Slot& from = slot(id);
  if (from.page == kNoPage) return {};
  Page& page = table_.page(from.page);
  if (page.backed && page.live == 0) {  // of a heap, and nothing lives in it any more
    page.blank = true;
    page.dirty = false;
  }
  if (on_host_) return evict_to_host(id);
  if (page.dirty) {
    PENSTOCK_TRY(write_back(from.page));
    from.busy.assign(1, page.written);  // which waited for its uses
  } else {
    from.busy = page.last_use;
    if (from.busy.empty()) from.busy.push_back(page.ready);  // copied in, never used
    add_mark(from.busy, page.written);
  }
  if (unmaps_) stale_.push_back(from.page);
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

void ResidentSet::unmap_evicted(bool yes) {
  if (unmaps_ == yes) return;
  unmaps_ = yes;
  stale_.clear();
  for (PageId id = 0; yes && id < table_.pages(); ++id) {
    const Page& page = table_.page(id);
    if (page.slot == kNoSlot && page.mapped != kNoSlot) stale_.push_back(id);
  }
}

Result<bool> ResidentSet::is_over(const Page& page) {
  for (const Mark& mark : page.last_use) {
    PENSTOCK_ASSIGN(const bool reached, mark.reached());
    if (!reached) return false;
  }
  PENSTOCK_ASSIGN(const bool arrived, page.ready.reached());
  if (!arrived) return false;
  return page.written.reached();
}

Status ResidentSet::unmap_stale(bool wait) {
  for (std::size_t i = 0; i < stale_.size();) {
    const PageId id = stale_[i];
    const Page& page = table_.page(id);
    if (page.slot == kNoSlot && page.mapped != kNoSlot) {
      bool over = wait;
      if (!wait) {
        PENSTOCK_ASSIGN(over, is_over(page));
      }
      if (!over) {
        ++i;
        continue;
      }
      PENSTOCK_TRY(unmap_page(id));
    }
    stale_[i] = stale_.back();
    stale_.pop_back();
  }
  return {};
}

// On an H200 (driver 580) CUDA at times refuses to map a chunk at one more address, whichever, with
// CUDA_ERROR_UNKNOWN, after a few thousand remappings: with 19 addresses, where 4,096 were no
// trouble to others.  Giving up the oldest ten did not help, the latest did.
Status ResidentSet::map_to(Slot& target, Addr address) {
  Status status = driver_.map(address, pool_.chunk_bytes(), *target.chunk);
  while (status.code() == Code::kDriver && !target.mapped.empty() &&
         table_.page(target.mapped.back()).slot == kNoSlot) {
    PENSTOCK_TRY(unmap_page(target.mapped.back()));
    status = driver_.map(address, pool_.chunk_bytes(), *target.chunk);
  }
  return status;
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
    if (page.on_host) status = unmap_from_host(id);
    if (status.ok() && !target.chunk) {
      auto chunk = pool_.take(chunk_bytes);
      status = chunk.status();
      if (chunk.ok()) target.chunk = chunk.value();
    }
    if (status.ok()) status = map_to(target, page.address);
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

// As few copies as the host memory of neighbours allows.  Memory that happens to follow, and was
// page-locked by another call, is refused by CUDA as one copy.
Status ResidentSet::copy_in(PageId first, std::size_t count, driver::Stream stream) {
  const auto end = first + static_cast<PageId>(count);
  for (PageId id = first; id < end;) {
    const Page& head = table_.page(id);
    if (head.blank) {
      ++id;
      continue;
    }
    Bytes bytes = 0;
    do {
      bytes += table_.page(id++).bytes;
    } while (id < end && !table_.page(id).blank && table_.continues(id - 1));
    if (on_host_) {  // both sides are the device's addresses
      PENSTOCK_TRY(
          driver_.copy_within(head.address, reinterpret_cast<Addr>(head.host), bytes, stream));
    } else {
      PENSTOCK_TRY(driver_.copy_in(head.address, head.host, bytes, stream));
    }
    counters_.bytes_in += bytes;
    ++counters_.copies;
  }
  return {};
}

Status ResidentSet::place(PageId first, std::span<const SlotId> into) {
  std::vector<Mark> before;
  for (const SlotId id : into) {
    PENSTOCK_TRY(evict(id));
    for (const Mark& mark : slot(id).busy) add_mark(before, mark);
  }
  PENSTOCK_TRY(map_run(first, into));
  for (std::size_t i = 0; i < into.size(); ++i) {
    add_mark(before, table_.page(first + static_cast<PageId>(i)).written);
  }
  Timeline& line = *in_[next_in_];
  next_in_ = (next_in_ + 1) % in_.size();
  for (const Mark& mark : before) PENSTOCK_TRY(mark.make_wait(line.stream()));
  Result<Tick> recorded(Tick{0});
  if (Status status = copy_in(first, into.size(), line.stream()); status.ok()) {
    recorded = line.record();
  } else {
    recorded = status;
  }
  // Without a mark nobody would wait for what is on its way already.
  if (!recorded.ok()) (void)driver_.synchronize(line.stream());
  PENSTOCK_ASSIGN(const Tick tick, std::move(recorded));
  for (std::size_t i = 0; i < into.size(); ++i) {
    const PageId id = first + static_cast<PageId>(i);
    Page& page = table_.page(id);
    page.slot = into[i];
    page.ready = Mark{&line, tick};
    page.last_use.clear();
    Slot& target = slot(into[i]);
    target.page = id;
    target.busy.clear();
  }
  return on_host_ ? arrived(first, into.size()) : Status{};
}

Status ResidentSet::drop(PageId id) {
  Page& page = table_.page(id);
  PENSTOCK_TRY(synchronize_page(id));
  if (page.slot != kNoSlot) {
    Slot& from = slot(page.slot);
    from.page = kNoPage;
    from.busy.clear();
    page.slot = kNoSlot;
  }
  if (on_host_) PENSTOCK_TRY(idle());
  if (page.mapped != kNoSlot) PENSTOCK_TRY(unmap_page(id));
  if (page.on_host) PENSTOCK_TRY(unmap_from_host(id));
  page.dirty = false;
  page.blank = true;
  page.last_use.clear();
  return {};
}

Status ResidentSet::remove_slot(SlotId id) {
  PENSTOCK_TRY(evict(id));
  for (const Mark& mark : slot(id).busy) PENSTOCK_TRY(mark.synchronize());
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
