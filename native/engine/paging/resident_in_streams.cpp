// SPDX-License-Identifier: Apache-2.0
// Pages that come and go in the order of streams alone.  An evicted page keeps its mapping until it
// comes back elsewhere: remapping under running kernels costs 150-300 us a page and makes the
// launching thread wait for the victim's last use.

#include "base/undo.hpp"
#include "engine/paging/resident_set.hpp"

namespace penstock::engine {

Status ResidentSet::evict_in_stream(SlotId id) {
  Slot& from = slot(id);
  Page& page = table_.page(from.page);
  if (page.dirty) {
    PENSTOCK_TRY(write_back(from.page));
    from.busy.assign(1, page.written);  // which waited for its uses
  } else {
    from.busy = page.last_use;
    if (from.busy.empty()) from.busy.push_back(page.ready);  // copied in, never used
    add_mark(from.busy, page.written);
  }
  page.slot = kNoSlot;
  from.page = kNoPage;
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
    const Status status = guarded([&]() -> Status {
      if (page.mapped != kNoSlot) PENSTOCK_TRY(unmap_page(id));
      if (page.on_host) PENSTOCK_TRY(unmap_from_host(id));
      PENSTOCK_TRY(give_chunks(into.subspan(i, 1)));
      room_for(target.mapped, target.mapped.size() + 1);
      return map_to(target, page.address);
    });
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
Result<Mark> ResidentSet::copy_in(PageId first, std::size_t count, Timeline& line) {
  std::vector<PageCopies::In> in_parts;
  const auto end = first + static_cast<PageId>(count);
  for (PageId id = first; id < end;) {
    const Page& head = table_.page(id);
    if (head.blank) {
      ++id;
      continue;
    }
    if (!head.parts.empty()) {
      in_parts.push_back({head.address, nullptr, head.bytes, head.parts});
      counters_.bytes_in += head.travels();
      ++counters_.copies;
      ++id;
      continue;
    }
    Bytes bytes = 0;
    do {
      bytes += table_.page(id++).bytes;
    } while (id < end && !table_.page(id).blank && table_.page(id).parts.empty() &&
             table_.continues(id - 1));
    if (evicted_ == Evicted::kOnHost) {  // both sides are the device's addresses
      PENSTOCK_TRY(driver_.copy_within(head.address, reinterpret_cast<Addr>(head.host), bytes,
                                       line.stream()));
    } else {
      PENSTOCK_TRY(driver_.copy_in(head.address, head.host, bytes, line.stream()));
    }
    counters_.bytes_in += bytes;
    ++counters_.copies;
  }
  return copies_.in(in_parts, line);
}

Status ResidentSet::place_in_stream(PageId first, std::span<const SlotId> into) {
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
  // Without a mark nobody would wait for what is on its way already.
  Undo wait([&] {
    (void)driver_.synchronize(line.stream());
    copies_.synchronize();
  });
  PENSTOCK_ASSIGN(const Mark ready, copy_in(first, into.size(), line));
  wait.keep();
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

}  // namespace penstock::engine
