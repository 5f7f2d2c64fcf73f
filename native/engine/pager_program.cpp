// SPDX-License-Identifier: Apache-2.0
// The pager for a program that announces its work piece by piece and knows nothing of uses: heaps
// whose pages come and go with its allocations, groups of work in place of declared uses, and the
// order of uses learned while it runs.
//
// A block is *settled* when work came back to it several times with a pause in between: a weight
// is, a cache that is copied to a new place for every token is not.  Work that touches settled
// pages for the first time in its group begins a use, and with it a new group; the uses in their
// order are what is learned and planned.  Other pages (activations) are brought in when they are
// touched and stay until room is short: they live in slots that the plan leaves to them.  So do
// pages that tell nothing of the order, see tells().  Marks are recorded once a group, not once a
// launch.
#include <algorithm>
#include <mutex>
#include <string>
#include <thread>

#include "engine/pager.hpp"

namespace penstock::engine {
namespace {

// A group of another stream that got no work for so long is closed.
constexpr std::uint64_t kIdle = 64;
// A group holds at most such a share of the slots, since nothing of it may leave.
constexpr std::size_t kShareOfGroup = 4;

}  // namespace

std::unique_lock<std::recursive_mutex> Pager::alone() {
  std::unique_lock lock(giving_, std::defer_lock);
  if (options_.evicted == Evicted::kOnHost) lock.lock();
  return lock;
}

Result<Addr> Pager::create_heap(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Bytes size = align_up(bytes, pool_.chunk_bytes());
  if (auto& closed = closed_heaps_[size]; !closed.empty()) {
    const Addr address = closed.back();
    closed.pop_back();
    return address;
  }
  PENSTOCK_ASSIGN(const std::int32_t index, table_.create(size, RangeKind::kHeap));
  drop_plan();
  PENSTOCK_TRY(fit_slots());
  return table_.range(index).address;
}

Status Pager::close_heap(Addr address) {
  Range range;
  {
    const std::lock_guard lock(mutex_);
    const Range* found = table_.find(address, 1);
    if (found == nullptr || found->address != address || found->kind != RangeKind::kHeap) {
      return {Code::kInvalidArgument, "there is no such heap"};
    }
    range = *found;
  }
  PENSTOCK_TRY(discard(range.address, range.bytes));
  const std::lock_guard lock(mutex_);
  closed_heaps_[range.bytes].push_back(address);
  return {};
}

Status Pager::back(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return {Code::kInvalidArgument, "memory is asked for outside every heap"};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    if (page.backed) continue;
    if (!paging_) {
      const SlotId slot = choose_other_slot();
      if (slot == kNoSlot || residents_.slot(slot).page != kNoPage) {
        return {Code::kOutOfMemory,
                "the budget of " + std::to_string(pool_.budget()) + " bytes is full"};
      }
      PENSTOCK_TRY(residents_.place(id, std::span(&slot, 1)));
      PENSTOCK_TRY(page.ready.synchronize());
      page.blank = false;  // work on it is not announced: it may write
      page.dirty = true;
    }
    page.backed = true;
  }
  return {};
}

Status Pager::discard(Addr address, Bytes bytes) {
  const auto giving = alone();
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return {Code::kInvalidArgument, "memory is given back that is in no heap"};
  for (std::size_t group = 0; group < groups_.size(); ++group) PENSTOCK_TRY(close(group));
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    if (!page.backed) continue;
    PENSTOCK_TRY(residents_.drop(id));
    table_.take_host(page);
    not_hot(page);
    page.backed = false;
  }
  return {};
}

void Pager::start_paging() {
  const std::lock_guard lock(mutex_);
  paging_ = true;
}

void Pager::occupy(Addr address, Bytes bytes, int delta) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return;
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    page.live += delta;
    page.changed = period_.fed();
    // Work that reaches it unseen, before any that is seen to, faults if this fails.
    if (options_.evicted == Evicted::kOnHost && paging_ && page.live > 0 && page.backed) {
      (void)residents_.map_on_host(id);
    }
  }
}

Status Pager::pin(Addr address, Bytes bytes, int delta) {
  const auto giving = alone();
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return {};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    page.active += delta;
    if (delta < 0) continue;
    if (page.slot == kNoSlot) {
      if (Status status = demand_other(id); !status.ok()) {
        for (PageId undo = first; undo <= id; ++undo) table_.page(undo).active -= delta;
        return status;
      }
    }
    PENSTOCK_TRY(page.ready.synchronize());
    page.blank = false;
    page.dirty = true;
  }
  return {};
}

void Pager::pages_touched(std::span<const Touch> touches, std::vector<PageId>& pages) {
  pages.clear();
  for (const Touch& touch : touches) {
    const Range* range = table_.find(touch.address, 1);
    if (range == nullptr || range->kind != RangeKind::kHeap) continue;
    const Bytes room = range->bytes - (touch.address - range->address);
    const auto [first, last] = table_.pages_of(*range, touch.address, std::min(touch.bytes, room));
    for (PageId id = first; id <= last; ++id) {
      Page& page = table_.page(id);
      if (!page.backed) continue;
      page.writing = page.writing || touch.written;
      if (touch.settled) page.settled_at = announced_;
      if (page.seen == announced_) continue;
      page.seen = announced_;
      pages.push_back(id);
    }
  }
}

std::size_t Pager::group_of(driver::Stream stream) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].stream == stream) return i;
  }
  groups_.push_back({.stream = stream, .pages = {}});
  return groups_.size() - 1;
}

Status Pager::announce(driver::Stream stream, std::span<const Touch> touches, bool opaque,
                       std::uint64_t function) {
  auto giving = alone();
  const std::lock_guard lock(mutex_);
  ++announced_;
  PENSTOCK_TRY(doubt(opaque, function));
  pages_touched(touches, touched_);
  const std::size_t index = group_of(stream);
  groups_[index].last = announced_;
  const auto look = [&] {
    fresh_.clear();
    planned_.clear();
    for (const PageId id : touched_) {
      const Page& page = table_.page(id);
      if (page.group == static_cast<std::int32_t>(index)) continue;
      fresh_.push_back(id);
      if (page.settled_at == announced_ && tells(page)) planned_.push_back(id);
    }
  };
  look();
  Status status;
  if (!fresh_.empty()) {
    const std::size_t held = groups_[index].pages.size();
    const std::size_t most = static_cast<std::size_t>(residents_.slots()) / kShareOfGroup;
    if (held > 0 && (!planned_.empty() || held + fresh_.size() > most)) {
      PENSTOCK_TRY(close(index));
      look();
    }
    PENSTOCK_TRY(close_idle(index));
    status = enter(index);
    if (status.code() == Code::kOutOfMemory) {
      // What other work holds may go once that is over; what this work touches may not.
      for (std::size_t i = 0; i < groups_.size(); ++i) PENSTOCK_TRY(close(i));
      look();
      planned_.clear();  // its use has begun
      status = enter(index);
    }
  }
  if (!status.ok()) return status;
  ++groups_[index].under_way;
  residents_.work_follows();
  giving.release();  // held until given()
  return {};
}

void Pager::given(driver::Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    --groups_[group_of(stream)].under_way;
  }
  if (options_.evicted == Evicted::kOnHost) giving_.unlock();
}

Status Pager::share_with(int ordinal) {
  std::unique_lock lock(mutex_);
  const auto under_way = [](const Group& group) { return group.under_way > 0; };
  while (std::any_of(groups_.begin(), groups_.end(), under_way)) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  PENSTOCK_TRY(driver_.synchronize_device());
  return driver_.share_with(ordinal);
}

// The fresh pages join the group: they are brought in where they are not, and the stream waits.
Status Pager::enter(std::size_t index) {
  Status status = bring_in(index);
  if (status.ok()) {
    for (const PageId id : fresh_) {
      if (table_.page(id).writing) table_.page(id).blank = false;
    }
    // What cannot be brought in ahead will be when it is needed, or fail then.
    if (cursor_.planned()) (void)issue_loads();
    return {};
  }
  // The work will not be given: its pages are not in the group, which may lack some of them.
  Group& group = groups_[index];
  for (const PageId id : fresh_) {
    Page& page = table_.page(id);
    --page.active;
    if (page.group == static_cast<std::int32_t>(index)) page.group = -1;
    group.pages.pop_back();
  }
  return status;
}

Status Pager::bring_in(std::size_t index) {
  Group& group = groups_[index];
  for (const PageId id : fresh_) {
    Page& page = table_.page(id);
    ++page.active;
    page.group = static_cast<std::int32_t>(index);
    group.pages.push_back(id);
  }
  UseId use = -1;
  if (!planned_.empty()) {
    std::sort(planned_.begin(), planned_.end());
    use = intern(planned_);
    PENSTOCK_TRY(use_begins(use));
  }
  arrivals_.clear();
  ++clock_;
  for (const PageId id : fresh_) {
    Page& page = table_.page(id);
    ++counters_.page_uses;
    const bool of_use = use >= 0 && std::binary_search(planned_.begin(), planned_.end(), id);
    joins(page, of_use);
    if (page.slot != kNoSlot) {
      ++counters_.page_hits;
    } else if (of_use) {
      PENSTOCK_TRY(demand(id));
    } else {
      PENSTOCK_TRY(demand_other(id));
    }
    residents_.slot(page.slot).stamp = clock_;
    add_mark(arrivals_, page.ready);
  }
  return wait_for(arrivals_, use, group.stream);
}

// Mark the end of the group's work; its pages may leave when that is over.
Status Pager::close(std::size_t index) {
  Group& group = groups_[index];
  if (group.pages.empty() || group.under_way > 0) return {};
  Timeline& line = timeline(group.stream);
  const auto tick = line.record();
  // Without a mark nobody could tell when the work ends: then wait for it here.
  if (!tick.ok()) (void)driver_.synchronize(group.stream);
  const Mark mark = tick.ok() ? Mark{&line, tick.value()} : Mark{};
  for (const PageId id : group.pages) {
    Page& page = table_.page(id);
    --page.active;
    residents_.mark_used(id, mark, page.writing);
    if (page.writing) page.blank = false;
    page.writing = false;
    if (page.group == static_cast<std::int32_t>(index)) page.group = -1;
  }
  group.pages.clear();
  return residents_.unmap_stale();
}

Status Pager::close_idle(std::size_t but) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (i != but && !groups_[i].pages.empty() && groups_[i].last + kIdle < announced_) {
      PENSTOCK_TRY(close(i));
    }
  }
  return {};
}

Status Pager::close_stream(driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].stream == stream) PENSTOCK_TRY(close(i));
  }
  // Another stream may get the same handle: nothing of this one may be waited for by it any more.
  const auto line = timelines_.find(stream);
  return line == timelines_.end() ? Status{} : line->second->synchronize(line->second->latest());
}

// An empty slot, else the one least recently used, of those that the plan does not name.
SlotId Pager::choose_other_slot() {
  SlotId best = kNoSlot;
  bool best_dead = false;
  for (SlotId id = 0; id < residents_.slots(); ++id) {
    const Slot& slot = residents_.slot(id);
    if (slot.planned) continue;
    if (slot.page == kNoPage) return id;
    const Page& page = table_.page(slot.page);
    if (page.active > 0) continue;
    const bool dead = page.live == 0;
    if (best == kNoSlot || dead > best_dead ||
        (dead == best_dead && slot.stamp < residents_.slot(best).stamp)) {
      best = id;
      best_dead = dead;
    }
  }
  return best;
}

Status Pager::demand_other(PageId page) {
  SlotId slot = choose_other_slot();
  if (slot == kNoSlot) {
    PENSTOCK_ASSIGN(slot, choose_slot(page));
    if (cursor_.planned() && table_.page(page).blank) ++stolen_;
  }
  PENSTOCK_TRY(residents_.place(page, std::span(&slot, 1)));
  residents_.slot(slot).release = -1;
  if (table_.page(page).blank) return {};
  ++counters_.demanded_pages;
  if (cursor_.planned()) ++missed_;
  return {};
}

}  // namespace penstock::engine
