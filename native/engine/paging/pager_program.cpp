// SPDX-License-Identifier: Apache-2.0
// The pager for a program that announces its work piece by piece and knows nothing of uses: heaps
// whose pages come and go with its allocations, and groups of work in place of declared uses.
//
// Work that touches pages which are not in its stream's group joins them to that: they are there
// from then on and stay until the group is closed, which is when it would hold too many.  Marks are
// recorded once a group, not once a launch.  What is told of pages as they join is all that is
// known of a program's order, see policy/learning/next_uses; by it pages leave, and come ahead of
// their use.
#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/paging/pager.hpp"

namespace penstock::engine {
namespace {

// A group of another stream that got no work for so long is closed.
constexpr std::uint64_t kIdle = 64;
// A group holds at most so many pages, and such a share of the slots, since nothing of it may
// leave; but all that one piece of work touches.  With 4 to 12 decisions are the same within 3 % in
// simulations, and LoRA and AdamW steps no shorter by turns on an H200 (groups-h200.json).
constexpr std::size_t kMostOfGroup = 2;
constexpr std::size_t kShareOfGroup = 4;

}  // namespace

bool Pager::others_giving() const {
  return giving_.size() > giving_.count(std::this_thread::get_id());
}

// Their work may need what others announce only then, so nobody is kept from announcing meanwhile.
void Pager::wait_for_others(std::unique_lock<std::mutex>& lock) {
  given_.wait(lock, [this] { return !others_giving(); });
}

Result<Addr> Pager::create_heap(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Bytes size = align_up(bytes, pool_.chunk_bytes());
  if (auto& closed = closed_heaps_[size]; !closed.empty()) {
    const Addr address = closed.back();
    closed.pop_back();
    return address;
  }
  PENSTOCK_ASSIGN(const std::int32_t index, new_range(size, RangeKind::kHeap));
  cover_pages();
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
      const SlotId slot = page.slot != kNoSlot ? page.slot : residents_.empty_slot();
      if (slot == kNoSlot) {
        return {Code::kOutOfMemory,
                "the budget of " + std::to_string(pool_.budget()) + " bytes is full"};
      }
      // It is there already if the last attempt could not wait for it.
      if (page.slot != slot) PENSTOCK_TRY(residents_.place(id, std::span(&slot, 1)));
      PENSTOCK_TRY(residents_.arrive(id));
      PENSTOCK_TRY(page.ready.synchronize());
      page.blank = false;  // work on it is not announced: it may write
      page.dirty = true;
    }
    page.backed = true;
  }
  return {};
}

Status Pager::discard(Addr address, Bytes bytes) {
  std::unique_lock lock(mutex_);
  wait_for_others(lock);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return {Code::kInvalidArgument, "memory is given back that is in no heap"};
  for (std::size_t group = 0; group < groups_.size(); ++group) PENSTOCK_TRY(close(group));
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    // Of a group that cannot be closed: its stream captures, or its work is yet to be given.
    if (table_.page(id).active > 0) return {Code::kNotReady, "work under way touches the memory"};
  }
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    if (!page.backed) continue;
    PENSTOCK_TRY(residents_.drop(id));
    table_.take_host(page);
    page.backed = false;
  }
  return {};
}

void Pager::start_paging() {
  const std::lock_guard lock(mutex_);
  if (paging_) return;
  next_uses_.begin();
  paging_ = true;
  for (SlotId slot = 0; slot < residents_.slots(); ++slot) {
    if (const PageId page = residents_.slot(slot).page; page != kNoPage) rests(page);
  }
}

void Pager::occupy(Addr address, Bytes bytes, int delta) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return;
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    Page& page = table_.page(id);
    page.live += delta;
    if (delta < 0 && page.live == 0) mark_death(page);
    // Work that reaches it unseen, before any that is seen to, faults if this fails.
    if (options_.evicted == Evicted::kOnHost && paging_ && page.live > 0 && page.backed) {
      (void)guarded([&] { return residents_.map_on_host(id); });
    }
  }
}

// Its content goes when it leaves, or stays away, which work may reach unseen that was given before
// its last block was freed: it goes after that, or not at all.
void Pager::mark_death(Page& page) {
  page.reached = false;
  if (!paging_ || options_.evicted == Evicted::kOnHost) return;
  const bool away = page.slot == kNoSlot;
  std::vector<Mark>& marks = away ? page.death : page.last_use;
  page.reached = options_.evicted == Evicted::kUnmapped && !mark_groups(marks);
  page.died = away && !page.reached;
}

// All work given so far; false where no mark tells when that is over.
bool Pager::mark_groups(std::vector<Mark>& marks) {
  for (Group& group : groups_) {
    if (group.id == StreamId{} || group.last == 0) continue;
    if (streams_.destroyed(group.id)) continue;
    if (!streams_.reachable(group.id) || streams_.capturing(group.id)) return false;
    if (!group.marked) {
      if (!mark_now(group.stream, group.death).ok()) return false;
      group.marked = true;
    }
    add_mark(marks, group.death);
  }
  return true;
}

Status Pager::pin(Addr address, Bytes bytes, int delta) {
  std::unique_lock lock(mutex_);
  if (delta > 0) wait_for_others(lock);
  const Range* range = table_.find(address, bytes);
  if (range == nullptr) return {};
  const auto [first, last] = table_.pages_of(*range, address, bytes);
  for (PageId id = first; id <= last; ++id) {
    if (delta < 0) {
      // Work that was given while it was pinned may reach it, and need not have named it.
      Page& page = table_.page(id);
      if (--page.active == 0 && paging_) (void)mark_groups(page.last_use);
      rests(id);
    } else if (Status status = pin_page(id); !status.ok()) {
      for (PageId undo = first; undo < id; ++undo) {
        --table_.page(undo).active;
        rests(undo);
      }
      return status;
    }
  }
  check_residency();
  return {};
}

Addr Pager::page_around(Addr address) {
  const std::lock_guard lock(mutex_);
  const Range* range = table_.find(address, 1);
  return range == nullptr ? 0 : table_.page(table_.pages_of(*range, address, 1).first).address;
}

Status Pager::pin_page(PageId id) {
  Page& page = table_.page(id);
  ++page.active;
  Status status = guarded([&]() -> Status {
    Status there = bring(id);
    for (std::size_t i = 0; i < groups_.size() && there.code() == Code::kOutOfMemory; ++i) {
      PENSTOCK_TRY(close(i));
      there = bring(id);
    }
    PENSTOCK_TRY(there);
    PENSTOCK_TRY(residents_.arrive(id));
    return page.ready.synchronize();
  });
  if (!status.ok()) {
    --page.active;
    rests(id);
    return status;
  }
  page.blank = false;
  page.dirty = true;
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
      if (page.seen == announced_) continue;
      page.seen = announced_;
      pages.push_back(id);
    }
  }
}

std::size_t Pager::group_of(driver::Stream stream) {
  const StreamId id = streams_.id(stream);
  std::size_t empty = groups_.size();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].id == id) return i;
    if (groups_[i].id == StreamId{}) empty = i;
  }
  if (empty == groups_.size()) groups_.emplace_back();
  groups_[empty].id = id;
  groups_[empty].stream = stream;
  groups_[empty].arrivals = 0;
  return empty;
}

Status Pager::announce(driver::Stream stream, std::span<const Touch> touches) {
  std::unique_lock lock(mutex_);
  const bool on_host = options_.evicted == Evicted::kOnHost;
  const auto find_touched = [&] {
    ++announced_;
    pages_touched(touches, touched_);
  };
  find_touched();
  const auto there = [&](PageId id) { return table_.page(id).slot != kNoSlot; };
  while (on_host && others_giving() && !std::all_of(touched_.begin(), touched_.end(), there)) {
    given_.wait(lock);
    find_touched();
  }
  const std::size_t index = group_of(stream);
  groups_[index].last = announced_;
  const auto look = [&] {
    fresh_.clear();
    for (const PageId id : touched_) {
      if (table_.page(id).group != static_cast<std::int32_t>(index)) fresh_.push_back(id);
    }
  };
  look();
  Status status;
  if (!fresh_.empty()) {
    const std::size_t held = groups_[index].pages.size();
    const std::size_t share = static_cast<std::size_t>(residents_.slots()) / kShareOfGroup;
    if (held > 0 && held + fresh_.size() > std::min(share, kMostOfGroup)) {
      PENSTOCK_TRY(close(index));
      look();
    }
    PENSTOCK_TRY(close_idle(index));
    status = enter(index);
    if (status.code() == Code::kOutOfMemory) {
      // What other work holds may go once that is over; what this work touches may not.
      for (std::size_t i = 0; i < groups_.size(); ++i) PENSTOCK_TRY(close(i));
      look();
      status = enter(index);
    }
  }
  if (!status.ok()) return status;
  PENSTOCK_TRY(wait_for_arrivals(groups_[index]));
  if (on_host) ++giving_[std::this_thread::get_id()];
  ++groups_[index].under_way;
  residents_.work_follows();
  return {};
}

void Pager::given(driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  Group& group = groups_[group_of(stream)];
  --group.under_way;
  group.marked = false;
  residents_.work_follows();
  const auto mine = giving_.find(std::this_thread::get_id());
  if (mine == giving_.end() || --mine->second > 0) return;
  giving_.erase(mine);
  given_.notify_all();
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
  others_reach_ = true;
  return driver_.share_with(ordinal);
}

// What cannot be brought in ahead will be when it is needed, or fail then.
void Pager::try_ahead() {
  if (others_giving()) return;
  counters_.failed_moves += !guarded([this] { return bring_ahead(); }).ok();
}

// The fresh pages join the group: they are brought in where they are not, and the stream waits.
Status Pager::enter(std::size_t index) {
  room_for(groups_[index].pages, groups_[index].pages.size() + fresh_.size());
  Status status = guarded([&] { return bring_in(index); });
  if (status.ok()) {
    for (const PageId id : fresh_) {
      if (table_.page(id).writing) table_.page(id).blank = false;
    }
    try_ahead();
    check_residency();
    return {};
  }
  // The work will not be given: its pages are not in the group, which may lack some of them.
  Group& group = groups_[index];
  for (const PageId id : fresh_) {
    Page& page = table_.page(id);
    --page.active;
    rests(id);
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
  ++clock_;
  residents_.collect();
  for (const PageId id : fresh_) {
    uses(id);
    ++counters_.page_uses;
    counters_.page_hits += table_.page(id).slot != kNoSlot;
    PENSTOCK_TRY(bring(id));
  }
  const auto moving = [this](PageId id) { return table_.page(id).move != nullptr; };
  if (std::any_of(fresh_.begin(), fresh_.end(), moving)) {
    look_ahead_.waited();
    try_ahead();  // the link goes on meanwhile
    return await(fresh_, -1, group.stream, quiet());
  }
  return await(fresh_, -1, group.stream);
}

// All work given so far, where marks tell when that is over and what is given later will wait for
// what arrives.  Then a page can be mapped while it is on its way: the work that needs it is given,
// and the next page demanded, while the link is busy.  On an H200 a token of a mixture of experts
// takes 0.5 to 0.8 times as long (benchmarks/results/run/map-early-h200-*.json).
std::optional<std::span<const Mark>> Pager::quiet() {
  const auto under_way = [](const Group& group) { return group.under_way > 0; };
  if (!may_map_early()) return {};
  if (std::ranges::any_of(groups_, under_way)) return {};
  quiet_.clear();
  if (!mark_groups(quiet_)) return {};
  return quiet_;
}

// Of pages that were mapped before they arrived: the stream's work may touch one unseen, and must
// not find it half copied.
Status Pager::wait_for_arrivals(Group& group) {
  if (group.arrivals == residents_.arrivals()) return {};
  for (const Mark& mark : residents_.arriving()) {
    const Result<bool> reached = mark.reached();
    if (reached.ok() && reached.value()) continue;
    const bool captures = streams_.capturing(group.id);
    PENSTOCK_TRY(captures ? mark.synchronize() : mark.make_wait(group.stream));
  }
  group.arrivals = residents_.arrivals();
  return {};
}

// An event where this thread can record one; else the device is waited for.  False: neither can be,
// since a stream captures.
Result<bool> Pager::mark_end(const Group& group, Mark& mark) {
  if (!streams_.reachable(group.id)) return streams_.wait_for_device();
  if (streams_.capturing(group.id)) return false;
  return mark_now(group.stream, mark).ok() ? true : streams_.wait_for_device();
}

// Mark the end of the group's work; its pages may leave when that is over.
Status Pager::close(std::size_t index) {
  Group& group = groups_[index];
  if (group.under_way > 0 || group.id == StreamId{}) return {};
  const bool out_of_reach = !streams_.reachable(group.id);
  if (!group.pages.empty() || (out_of_reach && !streams_.destroyed(group.id))) {
    Mark mark;
    PENSTOCK_ASSIGN(const bool marked, mark_end(group, mark));
    if (!marked) return {};
    for (const PageId id : group.pages) {
      Page& page = table_.page(id);
      --page.active;
      residents_.mark_used(id, mark, page.writing);
      if (page.writing) page.blank = false;
      page.writing = false;
      if (page.group == static_cast<std::int32_t>(index)) page.group = -1;
      rests(id);
    }
    group.pages.clear();
  }
  if (!out_of_reach) return {};
  // For another stream: all its work is over, and its thread may have ended.
  return spare_timeline(std::exchange(group.id, {}));
}

Status Pager::wait_for_work() {
  std::vector<Mark> marks;
  const Result<bool> marked = guarded([&]() -> Result<bool> {
    const std::lock_guard lock(mutex_);
    return paging_ && mark_groups(marks);
  });
  if (!marked.ok() || !marked.value()) return driver_.synchronize_device();
  for (const Mark& mark : marks) PENSTOCK_TRY(mark.synchronize());
  // And for what is not announced, copies of memory of others': this stream waits for most others.
  return driver_.synchronize(driver::Stream{});
}

// The stream's, all of whose work is over or soon will be, serves another one.
Status Pager::spare_timeline(StreamId id) {
  const auto line = timelines_.find(id);
  if (line == timelines_.end()) return {};
  PENSTOCK_TRY(line->second->synchronize(line->second->latest()));
  room_for(spare_timelines_, spare_timelines_.size() + 1);
  spare_timelines_.push_back(std::move(line->second));
  timelines_.erase(line);
  return {};
}

Status Pager::close_idle(std::size_t but) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (i != but && groups_[i].last + kIdle < announced_) {
      PENSTOCK_TRY(close(i));
    }
  }
  return {};
}

Status Pager::stream_gone(driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  const StreamId id = streams_.id(stream);
  const Status status = guarded([&]() -> Status {
    // While an event can still mark its end; and all else, since mark_groups() passes it over from
    // here on.
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].id != id) continue;
      PENSTOCK_TRY(close(i));
      Mark all;
      PENSTOCK_TRY(mark_end(groups_[i], all).status());
    }
    return spare_timeline(id);
  });
  streams_.gone(stream);
  for (Group& group : groups_) {
    if (group.id == id && group.pages.empty() && group.under_way == 0) group.id = {};
  }
  return status;
}

}  // namespace penstock::engine
