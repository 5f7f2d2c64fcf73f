// SPDX-License-Identifier: Apache-2.0
// Which page is in which slot, and the work of changing it: remapping, copying in, writing back,
// and the events that order all of that against the kernels.  A slot is one chunk of the pool.
//
// Order kept here, whatever the policy asks for:
//   a copy into a slot starts after the last uses of the page that was there, and after that page
//   was written back if it was dirty;  a use of a page starts after the copy that brought it in;
//   an address is unmapped only when the host has seen its last use and its last copy end.
// With keep_evicted_on_host() nothing of that is left to streams: all happens while the device has
// nothing to do, see resident_on_host.cpp.
//
// An evicted page keeps its mapping, unless unmap_evicted(true) was said (see PENSTOCK_SAFETY_*):
// when it comes back to the same slot, as in a steady iteration it does, nothing needs mapping, and
// the whole page-in is stream-ordered without the host.  That matters because remapping under
// running kernels costs 150-300 us a page and makes the launching thread wait for the victim's last
// use.  Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/chunk_pool.hpp"
#include "engine/counters.hpp"
#include "engine/page_table.hpp"

namespace penstock::engine {

struct Slot {
  std::optional<driver::Chunk> chunk;  // created at the first use
  PageId page = kNoPage;
  std::int64_t release = -1;   // the step, counted from the plan's start, that `page` is kept for
  std::uint64_t stamp = 0;     // of the last use, for LRU
  bool planned = false;        // the plan names it
  std::vector<Mark> busy;      // of the page that was here before
  std::vector<PageId> mapped;  // pages whose addresses lead here, this one's included
};

class ResidentSet {
 public:
  // `streams` copies may be under way at once: while one ends the next has begun, which hides the
  // few microseconds between copies.
  ResidentSet(driver::Driver& driver, ChunkPool& pool, PageTable& table, Counters& counters,
              std::size_t streams)
      : driver_(driver), pool_(pool), table_(table), counters_(counters), in_(streams) {}
  ~ResidentSet();
  ResidentSet(const ResidentSet&) = delete;
  ResidentSet& operator=(const ResidentSet&) = delete;

  Status start();  // creates the copy streams, before anything else

  // An evicted page's address leads to its host memory from here on.  The caller sees to it that no
  // work is on its way to the device in calls that evict or place pages, and says with
  // work_follows() when some is again.
  void keep_evicted_on_host() { on_host_ = true; }
  void work_follows() { idle_ = false; }
  // The same for a page that is nowhere yet.
  Status map_on_host(PageId id);

  [[nodiscard]] SlotId slots() const { return static_cast<SlotId>(slots_.size()); }
  [[nodiscard]] Slot& slot(SlotId id) { return slots_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Slot& slot(SlotId id) const { return slots_[static_cast<std::size_t>(id)]; }
  void add_slots(SlotId count) { slots_.resize(slots_.size() + static_cast<std::size_t>(count)); }
  // Evict, unmap and give the chunk back; the last slot takes this one's number.
  Status remove_slot(SlotId id);

  // Bring neighbouring pages (first, first + 1, ...) into these slots with one copy.  What was in
  // the slots is evicted; it must not be active.  None of the pages may be resident.
  Status place(PageId first, std::span<const SlotId> into);
  Status evict(SlotId id);
  // Its content is not needed any more, nor its mapping; the host waits for its last use.
  Status drop(PageId id);

  // Whether the copies into these two slots would have to wait for the same thing.
  [[nodiscard]] bool freed_together(SlotId a, SlotId b);
  void mark_used(PageId id, Mark mark, bool written);

  Status synchronize_page(PageId id);  // the host waits for all that touches it
  Status write_back(PageId id);        // enqueue; clears dirty
  // Whether evicted pages are to be unmapped by unmap_stale(), those of before included.
  void unmap_evicted(bool yes);
  [[nodiscard]] bool unmaps_evicted() const { return unmaps_; }
  // Unmap those of them whose last use is over; all of them, if the host may wait for that.
  Status unmap_stale(bool wait = false);

 private:
  Status idle();  // waits for the device, once until work follows
  Status evict_to_host(SlotId id);
  Status unmap_from_host(PageId id);
  Status arrived(PageId first, std::size_t count);
  Status map_run(PageId first, std::span<const SlotId> into);
  Status copy_in(PageId first, std::size_t count, driver::Stream stream);
  Status unmap_page(PageId id);
  // The slot's chunk at this address; evicted pages give up theirs to it if they must.
  Status map_to(Slot& target, Addr address);
  static Result<bool> is_over(const Page& page);  // nothing on the device reaches it any more
  void forget_mapping(PageId id);

  driver::Driver& driver_;
  ChunkPool& pool_;
  PageTable& table_;
  Counters& counters_;
  bool unmaps_ = false;
  bool on_host_ = false;
  bool idle_ = false;
  std::vector<std::unique_ptr<Timeline>> in_;
  std::size_t next_in_ = 0;
  std::unique_ptr<Timeline> out_;
  std::vector<Slot> slots_;
  std::vector<PageId> stale_;  // evicted, and to be unmapped
};

}  // namespace penstock::engine
