// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/resident_set.hpp"

#include <algorithm>
#include <utility>

namespace penstock::engine {

ResidentSet::ResidentSet(driver::Driver& driver, ChunkPool& pool, PageTable& table,
                         Counters& counters, Evicted evicted, std::size_t streams)
    : driver_(driver),
      pool_(pool),
      table_(table),
      counters_(counters),
      evicted_(evicted),
      in_(evicted == Evicted::kMapped ? streams : 1),
      own_addresses_(driver, pool.chunk_bytes()),
      copies_(driver) {}

Status ResidentSet::start() {
  const auto open = [this](std::unique_ptr<Timeline>& line) -> Status {
    auto made = std::make_unique<Timeline>(driver_, driver::Stream{});
    PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
    made->go_on_in(stream);
    line = std::move(made);
    return {};
  };
  for (auto& line : in_) PENSTOCK_TRY(open(line));
  PENSTOCK_TRY(open(out_));
  room_for(arriving_, in_.size() + 2);  // and of what is decoded
  if (evicted_ == Evicted::kUnmapped) {
    mapper_ = std::make_unique<Mapper>(driver_, pool_.chunk_bytes(), copies_, *in_.front(), *out_);
  }
  return {};
}

ResidentSet::~ResidentSet() {
  if (!mapper_ || mapper_->here()) settle_all();
  mapper_.reset();
  for (const auto& line : in_) {
    if (line) (void)driver_.synchronize(line->stream());
  }
  if (out_) (void)driver_.synchronize(out_->stream());
  copies_.synchronize();
  for (PageId id = 0; id < table_.pages(); ++id) {
    Page& page = table_.page(id);
    for (const Mark& mark : page.last_use) (void)mark.synchronize();
    if (page.mapped != kNoSlot || page.on_host) {
      (void)driver_.unmap(page.address, pool_.chunk_bytes());
    }
    page.mapped = page.slot = kNoSlot;
    page.on_host = false;
  }
  for (SlotId id = 0; id < slots(); ++id) (void)take_chunks(std::span(&id, 1));
  const auto close = [this](std::unique_ptr<Timeline>& line) {
    if (!line) return;
    const driver::Stream stream = line->stream();
    line.reset();
    (void)driver_.destroy_stream(stream);
  };
  for (auto& line : in_) close(line);
  close(out_);
}

bool ResidentSet::freed_together(SlotId a, SlotId b) {
  const PageId in_a = slot(a).page;
  const PageId in_b = slot(b).page;
  if (in_a == kNoPage || in_b == kNoPage) return in_a == in_b;
  return table_.page(in_a).last_use == table_.page(in_b).last_use;
}

void ResidentSet::mark_used(PageId id, Mark mark, bool written) {
  Page& page = table_.page(id);
  page.dirty = page.dirty || written;
  page.blank = page.blank && !written;
  add_mark(page.last_use, mark);
}

Status ResidentSet::synchronize_page(PageId id) {
  const Page& page = table_.page(id);
  for (const Mark& mark : page.last_use) PENSTOCK_TRY(mark.synchronize());
  PENSTOCK_TRY(page.ready.synchronize());
  return page.written.synchronize();
}

Status ResidentSet::copy_page_out(PageId id, std::byte* to) {
  const Page& page = table_.page(id);
  PENSTOCK_TRY(synchronize_page(id));
  PENSTOCK_TRY(driver_.copy_out(to, page.address, page.bytes, out_->stream()));
  return driver_.synchronize(out_->stream());
}

Bytes ResidentSet::bytes_out(const Page& page) {
  if (page.parts.empty()) return page.bytes;
  Bytes bytes = 0;
  for (const Part& part : page.parts) bytes += part.encoded() ? 0 : part.bytes;
  return bytes;
}

Status ResidentSet::write_back(PageId id) {
  Page& page = table_.page(id);
  PENSTOCK_TRY(table_.give_host(page));
  // Its uses waited for its copy.
  if (page.last_use.empty()) PENSTOCK_TRY(page.ready.make_wait(out_->stream()));
  for (const Mark& mark : page.last_use) PENSTOCK_TRY(mark.make_wait(out_->stream()));
  if (page.fingerprint != nullptr) {  // that work may have written it does not mean that it did
    const bool still = table_.likely_still(page);
    PENSTOCK_TRY(driver_.copy_out_changed(page.host, page.address, page.bytes, page.fingerprint,
                                          still, out_->stream()));
  } else {
    PENSTOCK_TRY(copies_.out(page.host, page.address, page.bytes, page.parts, out_->stream()));
    counters_.bytes_out += bytes_out(page);
    ++counters_.copies;
  }
  Result<Tick> recorded = out_->record();
  if (!recorded.ok()) (void)driver_.synchronize(out_->stream());
  PENSTOCK_ASSIGN(const Tick tick, std::move(recorded));
  page.written = Mark{out_.get(), tick};
  page.dirty = false;
  return {};
}

// What it was is of no use any more, and comes back only if work that is not over may reach it.
void ResidentSet::forget_dead(Page& page) {
  if (!std::exchange(page.died, false)) return;
  page.blank = page.blank || Mapper::ready(page.death);
  page.death.clear();
}

Status ResidentSet::place(PageId first, std::span<const SlotId> into, bool prefetch) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    forget_dead(table_.page(first + static_cast<PageId>(i)));
  }
  if (evicted_ == Evicted::kUnmapped) return move(first, into, prefetch);
  const Status status = guarded([&] { return place_in_stream(first, into); });
  return evicted_ == Evicted::kMapped ? status : arrived(first, into, status);
}

SlotId ResidentSet::empty_slot() {
  SlotId found = kNoSlot;
  for (SlotId id = 0; empty_ && id < slots(); ++id) {
    if (slot(id).page != kNoPage) continue;
    found = id;
    if (slot(id).move == nullptr) break;
  }
  empty_ = found != kNoSlot;
  return found;
}

Status ResidentSet::evict(SlotId id) {
  Slot& from = slot(id);
  if (from.page == kNoPage) return {};
  empty_ = true;
  if (evicted_ == Evicted::kOnHost) return evict_to_host(id);
  Page& page = table_.page(from.page);
  if (page.backed && page.live == 0 &&
      !page.reached) {  // of a heap, and nothing lives in it any more
    page.blank = true;
    page.dirty = false;
  }
  return evicted_ == Evicted::kMapped ? evict_in_stream(id) : move_out(id);
}

void ResidentSet::forget_mapping(PageId id) {
  Page& page = table_.page(id);
  std::erase(slot(page.mapped).mapped, id);
  page.mapped = kNoSlot;
}

Status ResidentSet::unmap_page(PageId id) {
  PENSTOCK_TRY(synchronize_page(id));
  PENSTOCK_TRY(driver_.unmap(table_.page(id).address, pool_.chunk_bytes()));
  ++counters_.unmap_calls;
  forget_mapping(id);
  return {};
}

Status ResidentSet::drop(PageId id) {
  Page& page = table_.page(id);
  (void)settle(id);
  PENSTOCK_TRY(synchronize_page(id));
  if (evicted_ == Evicted::kOnHost) PENSTOCK_TRY(idle());
  if (page.mapped != kNoSlot) PENSTOCK_TRY(unmap_page(id));
  if (page.on_host) PENSTOCK_TRY(unmap_from_host(id));
  if (page.slot != kNoSlot) {
    Slot& from = slot(page.slot);
    from.page = kNoPage;
    from.busy.clear();
    page.slot = kNoSlot;
    empty_ = true;
  }
  page.dirty = false;
  page.blank = true;
  page.died = false;
  page.last_use.clear();
  return {};
}

Status ResidentSet::check() {
  collect();
  const auto wrong = [](const char* what, std::int32_t number) {
    return Status(Code::kInternal, "residency: ", what, number);
  };
  for (PageId id = 0; id < table_.pages(); ++id) {
    const Page& page = table_.page(id);
    if (page.slot != kNoSlot && (page.slot >= slots() || slot(page.slot).page != id)) {
      return wrong("a slot does not hold its page ", id);
    }
    if (evicted_ != Evicted::kUnmapped || page.mapped == kNoSlot || page.move != nullptr) continue;
    // And so no two lead to one chunk.
    if (page.mapped != page.slot) return wrong("an evicted page is mapped, ", id);
  }
  for (SlotId id = 0; id < slots(); ++id) {
    if (slot(id).page != kNoPage && table_.page(slot(id).page).slot != id) {
      return wrong("a page does not know its slot ", id);
    }
  }
  return {};
}

}  // namespace penstock::engine
