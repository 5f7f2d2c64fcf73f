// SPDX-License-Identifier: Apache-2.0
// Which page is in which slot, and the work of changing it: remapping, copying in, writing back,
// and the events that order all of that against the kernels.  A slot is one chunk of the pool.
//
// Order kept here, whatever the policy asks for:
//   a copy into a slot starts after the last uses of the page that was there, and after that page
//   was written back if it was dirty;  a use of a page starts after the copy that brought it in;
//   an address is unmapped only when the host has seen its last use and its last copy end.
// What becomes of an evicted page's address (Evicted) decides who keeps that order:
//   kUnmapped  a mapper does, beside the caller (resident_moves.cpp): place() and evict() hand it a
//              move, and arrive() waits for that.  No address leads to another page's data, ever.
//   kMapped    streams do, and the host waits for nothing (resident_in_streams.cpp).  When a page
//              comes back to the same slot, as in a steady iteration it does, nothing needs
//              mapping. Work that touches an evicted page unseen finds another's data.
//   kOnHost    nothing is left to streams: all happens while the device has nothing to do
//              (resident_on_host.cpp).
// Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/paging/chunk_pool.hpp"
#include "engine/paging/counters.hpp"
#include "engine/paging/mapper.hpp"
#include "engine/paging/own_addresses.hpp"
#include "engine/paging/page_copies.hpp"
#include "engine/paging/page_table.hpp"

namespace penstock::engine {

// What becomes of an evicted page's address while other pages have its memory.
enum class Evicted {
  kMapped,    // it stays as it is: nothing needs mapping when the page comes back to its place
  kUnmapped,  // unmapped before its memory holds anything else: an unseen use is right, or faults
  kOnHost     // it leads to the page's copy on the host: unseen uses are slow, and right
};

struct Slot {
  std::optional<driver::Chunk> chunk;  // created at the first use
  Addr own = 0;                        // kUnmapped: the chunk's address beside its page's
  PageId page = kNoPage;
  Move* move = nullptr;        // under way, into it or out of it
  std::int64_t release = -1;   // the step, counted from the plan's start, that `page` is kept for
  std::uint64_t stamp = 0;     // of the last use, for LRU
  std::vector<Mark> busy;      // of the page that was here before
  std::vector<PageId> mapped;  // pages whose addresses lead here, this one's included
};

class ResidentSet {
 public:
  // kMapped: `streams` copies may be under way at once: while one ends the next has begun, which
  // hides the few microseconds between copies.
  // kOnHost: no work is on its way to the device in calls that evict or place pages, and
  // work_follows() says when some is again.
  ResidentSet(driver::Driver& driver, ChunkPool& pool, PageTable& table, Counters& counters,
              Evicted evicted, std::size_t streams);
  ~ResidentSet();
  ResidentSet(const ResidentSet&) = delete;
  ResidentSet& operator=(const ResidentSet&) = delete;

  Status start();  // creates the copy streams, before anything else
  // From here on pages may have parts that are encoded, in moves of so many bytes at the most.
  Status stage(Bytes encoded_bytes) {
    settle_all();
    return copies_.stage(pool_, encoded_bytes);
  }
  [[nodiscard]] PageCopies& copies() { return copies_; }

  void work_follows() { idle_ = false; }
  // kOnHost: the address of a page that is nowhere yet leads to its host memory.
  Status map_on_host(PageId id);

  [[nodiscard]] SlotId slots() const { return static_cast<SlotId>(slots_.size()); }
  [[nodiscard]] Slot& slot(SlotId id) { return slots_[nth(id)]; }
  [[nodiscard]] const Slot& slot(SlotId id) const { return slots_[nth(id)]; }
  void add_slots(SlotId count) {
    slots_.resize(slots_.size() + nth(count));
    empty_ = true;
  }
  // One that is empty, and as a rule not moved out of any more; kNoSlot: none is.
  [[nodiscard]] SlotId empty_slot();
  // Of those that have none; all or, on failure, none.
  Status give_chunks(std::span<const SlotId> ids);
  // Of empty slots, each named once: give the chunks back; the last slots take their numbers.
  Status remove_slots(std::vector<SlotId> ids);

  // Bring neighbouring pages (first, first + 1, ...) into these slots.  What was in the slots is
  // evicted; it must not be active.  None of the pages may be resident, nor page or slot moving.
  // prefetch: nobody waits for it yet.  On failure nothing has changed.
  Status place(PageId first, std::span<const SlotId> into, bool prefetch = false);
  // The page is gone, or its move is under way.
  Status evict(SlotId id);
  // Its content is not needed any more, nor its mapping; the host waits for its last use.
  Status drop(PageId id);

  // ---- Moves; without a mapper there are none, and a page has arrived for the host at once ----
  // Those that are over show in pages and slots from here on.
  void collect();
  [[nodiscard]] bool moving() const { return !moves_.empty(); }
  // The host waits for the move of a page or a slot; what came of it shows.
  Status settle(PageId id, std::optional<std::span<const Mark>> quiet = {});
  Status settle_slot(SlotId id);
  void settle_all();
  // The page, which has a slot, is there and its address leads to it; the status of its move.
  // With `quiet` it may be on its way still, see Mapper::wait(); then Page::ready says until when,
  // and arriving() for all such pages.
  Status arrive(PageId id, std::optional<std::span<const Mark>> quiet = {});
  void hurry(PageId id);  // it is needed now
  // Marks that all work given from here on has to wait for; and how often there was one more.
  [[nodiscard]] const std::vector<Mark>& arriving() const { return arriving_; }
  [[nodiscard]] std::uint64_t arrivals() const { return arrivals_; }

  // Whether the copies into these two slots would have to wait for the same thing.
  [[nodiscard]] bool freed_together(SlotId a, SlotId b);
  void mark_used(PageId id, Mark mark, bool written);

  Status synchronize_page(PageId id);              // the host waits for all that touches it
  Status copy_page_out(PageId id, std::byte* to);  // and wait; it stays as it is
  Status write_back(PageId id);  // enqueue; clears dirty; no move may be under way
  // kInternal unless pages, slots, mappings and moves agree; for tests and debug builds.
  [[nodiscard]] Status check();

 private:
  static Bytes bytes_out(const Page& page);  // that a copy of it moves
  static void forget_dead(Page& page);
  Status idle();  // waits for the device, once until work follows
  Status evict_to_host(SlotId id);
  Status unmap_from_host(PageId id);
  Status arrived(PageId first, std::span<const SlotId> into, Status placed);
  void take_back(PageId first, std::span<const SlotId> into);

  Status place_in_stream(PageId first, std::span<const SlotId> into);
  Status evict_in_stream(SlotId id);
  Status map_run(PageId first, std::span<const SlotId> into);
  Result<Mark> copy_in(PageId first, std::size_t count, Timeline& line);
  Status unmap_page(PageId id);
  // The slot's chunk at this address; evicted pages give up theirs to it if they must.
  Status map_to(Slot& target, Addr address);
  void forget_mapping(PageId id);

  Status move(PageId first, std::span<const SlotId> into, bool prefetch);
  Status leaves(SlotId id, Move& move);
  Status move_out(SlotId id);
  Status submit(std::unique_ptr<Move> made);
  Status settle(Move& move, std::optional<std::span<const Mark>> quiet = {});
  Status apply(Move& move);
  Status give_own_addresses(std::span<const SlotId> ids);
  [[nodiscard]] std::size_t neighbours(std::span<const SlotId> ids) const;
  Status take_chunks(std::span<SlotId> ids);  // in an order of its own

  driver::Driver& driver_;
  ChunkPool& pool_;
  PageTable& table_;
  Counters& counters_;
  const Evicted evicted_;
  bool idle_ = false;
  std::vector<std::unique_ptr<Timeline>> in_;
  std::size_t next_in_ = 0;
  std::unique_ptr<Timeline> out_;
  std::vector<Slot> slots_;
  bool empty_ = true;  // one may be
  OwnAddresses own_addresses_;
  PageCopies copies_;
  std::vector<std::unique_ptr<Move>> moves_;  // under way, or not yet collected
  std::vector<Mark> arriving_;                // has room for all there can be
  std::uint64_t arrivals_ = 0;
  std::unique_ptr<Mapper> mapper_;  // last: it goes first
};

}  // namespace penstock::engine
