// SPDX-License-Identifier: Apache-2.0
// Pages that a mapper moves.  place() and evict() say at once where pages will be (Page::slot) and
// hand a move over; only when it is over, and was collected, do mappings and marks follow, or,
// where it failed, are pages said to be where they are.

#include "engine/paging/resident_set.hpp"

namespace penstock::engine {

// The slot's page is one of the move's victims.
Status ResidentSet::leaves(SlotId id, Move& move) {
  const Slot& from = slot(id);
  Page& page = table_.page(from.page);
  Move::Out out;
  out.page = from.page;
  out.slot = id;
  out.chunk = *from.chunk;
  out.own = from.own;
  out.address = page.address;
  out.range = page.range;
  out.mapped = page.mapped != kNoSlot;
  out.bytes = page.bytes;
  if (page.backed && page.live == 0 && !page.reached) {
    page.blank = true;
    page.dirty = false;
  } else if (page.backed) {  // work that was not seen to may have written it
    PENSTOCK_TRY(table_.give_host(page));
    page.blank = false;
    out.copy = table_.likely_still(page) ? Move::Copy::kIfChanged : Move::Copy::kCompared;
  } else if (page.dirty) {
    out.copy = Move::Copy::kPlain;
  }
  out.host = page.host;
  out.parts = page.parts;
  out.fingerprint = page.fingerprint;
  for (const Mark& mark : page.last_use) add_mark(move.busy, mark);
  add_mark(move.busy, page.written);
  add_mark(move.busy, page.ready);
  move.out.push_back(out);
  return {};
}

Status ResidentSet::submit(std::unique_ptr<Move> made) {
  room_for(moves_, moves_.size() + 1);
  PENSTOCK_TRY(mapper_->submit(*made));
  Move& move = *made;
  moves_.push_back(std::move(made));
  for (const Move::Out& out : move.out) {
    table_.page(out.page).slot = kNoSlot;
    table_.page(out.page).move = &move;
    slot(out.slot).page = kNoPage;
    slot(out.slot).move = &move;
    ++counters_.unmap_calls;
    if (out.copy != Move::Copy::kPlain) continue;
    counters_.bytes_out += bytes_out(table_.page(out.page));
    ++counters_.copies;
  }
  for (const Move::In& in : move.in) {
    Page& page = table_.page(in.page);
    page.slot = in.slot;
    page.move = &move;
    page.last_use.clear();
    page.ready = page.written = {};
    Slot& target = slot(in.slot);
    target.page = in.page;
    target.move = &move;
    target.busy.clear();
    ++counters_.map_calls;
    if (!in.copied()) continue;
    counters_.bytes_in += page.travels();
    ++counters_.copies;
  }
  return {};
}

Status ResidentSet::move(PageId first, std::span<const SlotId> into, bool prefetch) {
  auto made = std::make_unique<Move>();
  made->prefetch = prefetch;
  made->demanded = !prefetch;
  PENSTOCK_TRY(give_chunks(into));
  for (std::size_t i = 0; i < into.size(); ++i) {
    Slot& target = slot(into[i]);
    if (target.page != kNoPage) PENSTOCK_TRY(leaves(into[i], *made));
    const PageId id = first + static_cast<PageId>(i);
    const Page& page = table_.page(id);
    made->in.push_back({id, into[i], *target.chunk, target.own, page.address,
                        page.blank ? nullptr : page.host, page.bytes,
                        page.blank ? std::span<const Part>{} : std::span<const Part>(page.parts)});
  }
  return submit(std::move(made));
}

Status ResidentSet::move_out(SlotId id) {
  auto made = std::make_unique<Move>();
  PENSTOCK_TRY(leaves(id, *made));
  return submit(std::move(made));
}

// What came of a move that is over.
Status ResidentSet::apply(Move& move) {
  if (move.early) {
    add_mark(arriving_, move.arrival);
    ++arrivals_;
  }
  for (const Move::In& in : move.in) {
    Page& page = table_.page(in.page);
    page.move = slot(in.slot).move = nullptr;
    if (move.status.ok()) {
      page.mapped = in.slot;
      if (move.early) page.ready = move.arrival;
    } else {
      page.slot = kNoSlot;
      slot(in.slot).page = kNoPage;
      empty_ = true;
    }
  }
  for (const Move::Out& out : move.out) {
    Page& page = table_.page(out.page);
    page.move = slot(out.slot).move = nullptr;
    page.mapped = out.mapped ? out.slot : kNoSlot;
    if (move.left) {
      page.dirty = false;
      page.last_use.clear();
      page.written = move.arrival;  // which waited for the copy out, and may be yet to come
    } else {
      page.slot = out.slot;
      slot(out.slot).page = out.page;
    }
  }
  const Status status = std::move(move.status);
  counters_.failed_moves += !status.ok();
  std::erase_if(moves_, [&](const auto& each) { return each.get() == &move; });
  return status;
}

void ResidentSet::collect() {
  if (!moves_.empty()) mapper_->keep_up();
  for (std::size_t i = 0; i < moves_.size();) {
    if (mapper_->over(*moves_[i])) {
      (void)apply(*moves_[i]);
    } else {
      ++i;
    }
  }
}

Status ResidentSet::settle(Move& move, std::optional<std::span<const Mark>> quiet) {
  mapper_->wait(move, quiet);
  return apply(move);
}

Status ResidentSet::settle(PageId id, std::optional<std::span<const Mark>> quiet) {
  Move* const move = table_.page(id).move;
  return move == nullptr ? Status{} : settle(*move, quiet);
}

Status ResidentSet::settle_slot(SlotId id) {
  Move* const move = slot(id).move;
  return move == nullptr ? Status{} : settle(*move);
}

void ResidentSet::settle_all() {
  while (!moves_.empty()) (void)settle(*moves_.front());
}

void ResidentSet::hurry(PageId id) {
  if (Move* const move = table_.page(id).move; move != nullptr) mapper_->hurry(*move);
}

Status ResidentSet::arrive(PageId id, std::optional<std::span<const Mark>> quiet) {
  const Status status = settle(id, quiet);
  Page& page = table_.page(id);
  if (page.slot == kNoSlot) {
    return status.ok() ? Status(Code::kInternal, "a page is awaited that does not come") : status;
  }
  if (evicted_ != Evicted::kUnmapped || page.mapped == page.slot) return {};
  // It was to leave, did not, and could not be mapped again.
  PENSTOCK_TRY(driver_.map_with_access(page.address, pool_.chunk_bytes(), *slot(page.slot).chunk));
  page.mapped = page.slot;
  return {};
}

}  // namespace penstock::engine
