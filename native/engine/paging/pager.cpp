// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/pager.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/paging/shared_budget.hpp"

namespace penstock::engine {

Pager::Pager(driver::Driver& driver, const PagerOptions& options)
    : driver_(driver),
      options_(options),
      streams_(driver),
      pool_(driver, options.chunk_bytes, options.budget),
      table_(driver, pool_, options.evicted == Evicted::kOnHost),
      stalls_(driver, options.profile_every),
      residents_(driver, pool_, table_, counters_, options.evicted,
                 options.copy_streams == 0 ? kCopyStreams : options.copy_streams) {}

Result<std::unique_ptr<Pager>> Pager::create(driver::Driver& driver, const PagerOptions& options) {
  PagerOptions settled = options;
  const Bytes granularity = driver.info().granularity;
  // What is larger than the budget is refused below; what is huge could not be aligned.
  constexpr Bytes kMostChunk = Bytes{1} << 62;
  settled.chunk_bytes = align_up(
      std::clamp<Bytes>(options.chunk_bytes, 1, std::clamp<Bytes>(options.budget, 1, kMostChunk)),
      granularity);
  settled.max_copy_bytes = std::max(options.max_copy_bytes, settled.chunk_bytes);
  if (options.evicted == Evicted::kOnHost && !driver.info().host_chunks) {
    settled.evicted = Evicted::kUnmapped;
  }
  if (const Bytes chunk = std::max(options.chunk_bytes, settled.chunk_bytes);
      settled.budget < chunk) {
    return Status(Code::kOutOfMemory, "a budget of ", size_text(settled.budget),
                  " does not hold one chunk of ", size_text(chunk));
  }
  std::unique_ptr<Pager> pager(new Pager(driver, settled));
  PENSTOCK_TRY(pager->residents_.start());
  PENSTOCK_TRY(pager->stalls_.next_iteration(0, -1, 0, false));
  return pager;
}

Pager::~Pager() {
  // A use that never ended (a failure in between) may still be running.
  bool over = true;
  for (const auto& [use, stream] : active_) over = driver_.synchronize(stream).ok() && over;
  for (auto& [stream, line] : timelines_) over = line->synchronize(line->latest()).ok() && over;
  if (!over) (void)driver_.synchronize_device();
}

// In builds for tests what is wrong ends the program here, and does not show as other data later.
void Pager::fail_unless(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

void Pager::check_residency() {
#ifdef PENSTOCK_CHECKS
  fail_unless(residents_.check());
  for (PageId id = 0; id < table_.pages(); ++id) {
    const Page& page = table_.page(id);
    if (page.active > 0 && waiting_ == 0 && (page.slot == kNoSlot || page.move != nullptr)) {
      fail_unless({Code::kInternal, "residency: a page in use is not there, ", id});
    }
  }
#endif
}

Timeline& Pager::timeline(driver::Stream stream) {
  const StreamId id = streams_.id(stream);
  if (const auto found = timelines_.find(id); found != timelines_.end()) return *found->second;
  if (spare_timelines_.empty()) {
    spare_timelines_.push_back(std::make_unique<Timeline>(driver_, stream));
  }
  auto& line = timelines_.try_emplace(id, std::move(spare_timelines_.back())).first->second;
  spare_timelines_.pop_back();
  line->go_on_in(stream);
  return *line;
}

Status Pager::mark_now(driver::Stream stream, Mark& mark) {
  return guarded([&]() -> Status {
    Timeline& line = timeline(stream);
    PENSTOCK_ASSIGN(const Tick tick, line.record());
    mark = {&line, tick};
    return {};
  });
}

// With room for its pages, or not at all.
Result<std::int32_t> Pager::new_range(Bytes bytes, RangeKind kind) {
  PENSTOCK_ASSIGN(const std::int32_t index, table_.create(bytes, kind));
  Status status = guarded([this] { return fit_slots(); });
  if (status.ok()) return index;
  table_.undo_create();
  return status;
}

Result<std::int32_t> Pager::create_range(Bytes bytes, RangeKind kind) {
  const std::lock_guard lock(mutex_);
  if (kind == RangeKind::kPinned &&
      pool_.held() + align_up(bytes, driver_.info().granularity) > pool_.budget()) {
    return Status(Code::kOutOfMemory, "a pinned range of ", size_text(bytes), " beside ",
                  size_text(pool_.held()), " exceeds the budget of ", size_text(pool_.budget()));
  }
  PENSTOCK_ASSIGN(const std::int32_t index, new_range(bytes, kind));
  // Page numbers and the room for slots have changed: what was planned no longer holds.
  cursor_.drop();
  recorder_.clear();
  kinds_.clear();
  turns_.forget();
  return index;
}

Range Pager::range(std::int32_t index) {
  const std::lock_guard lock(mutex_);
  return table_.range(index);
}

Result<UseId> Pager::define_use(const std::vector<Piece>& pieces) {
  const std::lock_guard lock(mutex_);
  Use use;
  for (const Piece& piece : pieces) {
    const Range* range = table_.find(piece.address, piece.bytes);
    if (range == nullptr) {
      return invalid("a use names ", piece.bytes, " bytes that lie in no range of this pager");
    }
    if (range->kind != RangeKind::kPaged) continue;
    const auto [first, last] = table_.pages_of(*range, piece.address, piece.bytes);
    for (PageId id = first; id <= last; ++id) {
      use.pages.push_back(id);
      if (piece.written) use.written.push_back(id);
    }
  }
  for (auto* list : {&use.pages, &use.written}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  uses_.push_back(std::move(use));
  return static_cast<UseId>(uses_.size() - 1);
}

Status Pager::check_use(UseId use) const {
  if (use >= 0 && nth(use) < uses_.size()) return {};
  return invalid("use ", use, " was never defined");
}

bool Pager::is_free(SlotId id) {
  const Slot& slot = residents_.slot(id);
  if (slot.move != nullptr) return false;
  if (slot.page == kNoPage) return true;
  return table_.page(slot.page).active == 0 && slot.release < cursor_.begun();
}

policy::residency::Held Pager::held(SlotId id) {
  const Slot& slot = residents_.slot(id);
  if (slot.page == kNoPage) return {.empty = true};
  const Page& page = table_.page(slot.page);
  if (page.cold) return {.distance = kForEver};
  return {.kept = slot.release == kForEver,
          .distance = page.backed ? idle_.lateness(slot.page) : cursor_.distance(slot.page),
          .stamp = slot.stamp};
}

// Where to put a page that is needed now: its own place in the plan if that is free, else the best.
Result<SlotId> Pager::choose_slot(PageId page) {
  if (cursor_.planned()) {
    const SlotId home = cursor_.home(page);
    if (home >= 0 && home < residents_.slots() && is_free(home)) return home;
  }
  SlotId best = kNoSlot;
  for (SlotId id = 0; id < residents_.slots(); ++id) {
    const Slot& slot = residents_.slot(id);
    if (slot.page != kNoPage && table_.page(slot.page).active > 0) continue;
    if (best == kNoSlot || policy::residency::needed_later(held(id), held(best))) best = id;
  }
  if (best == kNoSlot) best = one_more_slot();
  if (best != kNoSlot) return best;
  return Status(Code::kOutOfMemory, "the uses that run together need more than the budget of ",
                size_text(pool_.budget()), " (", size_text(table_.pinned_bytes()),
                " of it pinned, ", residents_.slots(), " chunks of ",
                size_text(pool_.chunk_bytes()), ")");
}

// A slot that is moved into or out of is waited for, after which another may be the better one.
Result<SlotId> Pager::unmoving(const std::function<Result<SlotId>()>& choose) {
  residents_.collect();
  for (;;) {
    PENSTOCK_ASSIGN(const SlotId slot, choose());
    if (slot == kNoSlot || residents_.slot(slot).move == nullptr) return slot;
    (void)residents_.settle_slot(slot);
  }
}

Status Pager::demand(PageId page) {
  PENSTOCK_ASSIGN(const SlotId slot, unmoving([&] { return choose_slot(page); }));
  PENSTOCK_TRY(residents_.place(page, std::span(&slot, 1)));
  // Planned pages stay for as long as the plan has it; others until something needs the slot.
  residents_.slot(slot).release = -1;
  ++counters_.demanded_pages;
  disturbed_ |= cursor_.distance(page) != kForEver;
  return {};
}

Status Pager::bring(PageId id) {
  const Page& page = table_.page(id);
  if (page.slot == kNoSlot) (void)residents_.settle(id);  // it may be on its way out
  // As planned, if only moves held that up: of its slot's page, and of its own out of another.
  for (int i = 0; i < 2 && page.slot == kNoSlot && held_up_; ++i) {
    if (const auto next = cursor_.peek()) {
      (void)residents_.settle(next->page);
      (void)residents_.settle_slot(next->slot);
    }
    (void)issue_loads();
  }
  if (page.slot == kNoSlot) return page.backed ? demand_other(id) : demand(id);
  residents_.hurry(id);
  return {};
}

Status Pager::await(const std::vector<PageId>& pages, UseId use, driver::Stream stream,
                    std::optional<std::span<const Mark>> quiet) {
  bool waiting = false;
  const auto wait_begins = [&]() -> Status {
    return std::exchange(waiting, true) ? Status{} : stalls_.wait_begins(use, stream);
  };
  arrivals_.clear();
  for (const PageId id : pages) {
    const Page& page = table_.page(id);
    if (page.move != nullptr) PENSTOCK_TRY(wait_begins());
    const bool demanded = page.move != nullptr && !page.move->prefetch;
    // What failed ahead of its time is tried again, also where that has come to light meanwhile.
    Status status = residents_.arrive(id, quiet);
    if (!status.ok() && !demanded) {
      PENSTOCK_TRY(wait_begins());
      PENSTOCK_TRY(bring(id));
      status = residents_.arrive(id, quiet);
    }
    PENSTOCK_TRY(status);
    add_mark(arrivals_, page.ready);
  }
  // Those copies that are not known to be over.
  for (const Mark& mark : arrivals_) {
    PENSTOCK_ASSIGN(const bool reached, mark.reached());
    if (reached) continue;
    PENSTOCK_TRY(wait_begins());
    PENSTOCK_TRY(mark.make_wait(stream));
  }
  return waiting ? stalls_.wait_ends(stream) : Status{};
}

Status Pager::begin(UseId id, driver::Stream stream) {
  std::unique_lock lock(mutex_);
  PENSTOCK_TRY(check_use(id));
  room_for(active_, active_.size() + 1);
  if (cursor_.begin(id) != 0 && !comes_and_goes(id)) {
    ++counters_.mismatches;
    disturbed_ = true;
  }
  recorder_.begin(id);
  static std::atomic<std::uint64_t> begun{0};
  begun_.store(++begun, std::memory_order_relaxed);
  PENSTOCK_TRY(stalls_.use_begins(stream));
  residents_.collect();
  // From here on they cannot be chosen as victims for one another.
  for (const PageId page : pages_of(id)) ++table_.page(page).active;
  active_.emplace_back(id, stream);
  ++clock_;
  lacks_budget_ = false;
  Status status = guarded([&] { return bring_all(id, stream); });
  // What others keep for later, and pages of other pagers; somebody may be quicker.  Where it is
  // the device that is full, and not the budget, what they keep is all that can help.
  for (bool more = true; more && status.code() == Code::kOutOfMemory && shared() != nullptr;) {
    const Bytes bytes = pages_of(id).size() * pool_.chunk_bytes();
    const bool again = std::exchange(lacks_budget_, false);
    ++waiting_;
    lock.unlock();
    more = guarded([&] {
             shared()->reclaim();
             return shared()->make_room(bytes, this);
           }).ok();
    lock.lock();
    --waiting_;
    status = guarded([&] { return bring_all(id, stream); });
    more = more && (again || lacks_budget_);
  }
  if (!status.ok()) {
    for (const PageId page : pages_of(id)) --table_.page(page).active;
    active_.erase(std::find(active_.begin(), active_.end(), std::pair(id, stream)));
    recorder_.end(id);
  }
  check_residency();
  return status;
}

Status Pager::bring_all(UseId id, driver::Stream stream) {
  for (const PageId page : pages_of(id)) {
    ++counters_.page_uses;
    counters_.page_hits += table_.page(page).slot != kNoSlot;
    PENSTOCK_TRY(bring(page));
    table_.page(page).cold = false;
    residents_.slot(table_.page(page).slot).stamp = clock_;
  }
  return await(pages_of(id), id, stream);
}

Status Pager::end(UseId id, driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(check_use(id));
  const auto found = std::find_if(active_.rbegin(), active_.rend(),
                                  [&](const auto& entry) { return entry.first == id; });
  if (found == active_.rend()) return invalid("use ", id, " ends but has not begun");
  Mark mark;
  Status marked = mark_now(stream, mark);
  // Without a mark nobody could tell when the kernels end: then wait for them here.
  if (!marked.ok()) (void)driver_.synchronize(stream);
  active_.erase(std::next(found).base());
  recorder_.end(id);
  const Use& use = uses_[nth(id)];
  for (const PageId page : use.pages) --table_.page(page).active;
  for (const PageId page : use.pages) residents_.mark_used(page, mark, false);
  for (const PageId page : use.written) residents_.mark_used(page, mark, true);
  PENSTOCK_TRY(marked);
  PENSTOCK_TRY(stalls_.use_ends(stream));
  return issue_loads();
}

// A new number, unless another kind has the same order.
std::int64_t Pager::number_of(const std::vector<UseId>& order) {
  for (const auto& [kind, known] : kinds_) {
    if (known.order == order) return known.number;
  }
  return ++numbers_;
}

bool Pager::comes_and_goes(UseId use) const {
  const auto known = kinds_.find(kind_);
  return known != kinds_.end() && !known->second.regulars.has(use);
}

// An iteration of the kind is over.  A prefix is one that was broken off, not a new order.  Nor is
// a new one planned while something of it is still running.
void Pager::learn_kind(KnownKind& seen, const std::vector<UseId>& order) {
  std::vector<UseId> regular = seen.regulars.of(order);
  const auto known = [&] {
    return regular.size() <= seen.order.size() &&
           std::equal(regular.begin(), regular.end(), seen.order.begin());
  };
  if (!active_.empty() || (known() && regular.size() < seen.order.size())) return;
  if (regular.size() < order.size() || !known()) {
    seen.regulars.over(order);
    regular = seen.regulars.of(order);
  }
  for (const UseId use : order) {
    if (!seen.regulars.has(use)) {
      seen.others = std::max(seen.others, static_cast<SlotId>(pages_of(use).size()));
    }
  }
  if (known()) return;
  seen.number = number_of(regular);
  seen.order = std::move(regular);
  seen.sequence = recorder_.sequence(uses_, table_, seen.regulars);
}

// The orders that are to come by turns, one behind the other, are planned as one.
Status Pager::plan_turns(std::vector<std::int64_t> turns) {
  std::vector<UseId> order;
  std::vector<std::size_t> ends;
  policy::Sequence sequence;
  SlotId others = 0;
  for (const std::int64_t turn : turns) {
    const auto known = std::ranges::find_if(
        kinds_, [turn](const auto& entry) { return entry.second.number == turn; });
    if (known == kinds_.end()) return plan_turns({turns.front()});  // its kind has another by now
    const auto& [kind, of] = *known;
    order.insert(order.end(), of.order.begin(), of.order.end());
    ends.push_back(order.size());
    others = std::max(others, of.others);
    sequence.page_bytes = of.sequence.page_bytes;
    sequence.steps.insert(sequence.steps.end(), of.sequence.steps.begin(), of.sequence.steps.end());
  }
  planned_turns_ = std::move(turns);
  turn_ends_ = std::move(ends);
  turn_ = 0;
  sequence_ = std::move(sequence);
  disturbed_ = measured_ = false;
  // The next one is brought in while the last is in use.
  reserve_ = std::clamp(residents_.slots() - policy::smallest_pool(sequence_), 0, 2 * others);
  cursor_.adopt({}, std::move(order), sequence_);
  return plan_or_drop();
}

Status Pager::iteration(std::int64_t kind, std::uint64_t work) {
  const std::lock_guard lock(mutex_);
  if (!recorder_.empty()) {
    ++counters_.iterations;
    before_ = at_boundary_;
    at_boundary_ = counters_;
    const std::uint64_t profiles = stalls_.summary().iterations;
    const auto known = kinds_.find(kind);
    const int bits = std::bit_width(work);
    const bool due = options_.link_gb_per_s > 0 && known != kinds_.end() &&
                     !known->second.order.empty() && !known->second.compute_ms.contains(bits);
    PENSTOCK_TRY(stalls_.next_iteration(counters_.iterations, kind, bits, due));
    if (stalls_.summary().iterations > profiles) profiled();
    KnownKind& seen = kinds_[kind_];
    learn_kind(seen, recorder_.order());
    if (!seen.order.empty()) turns_.over(seen.number);
    recorder_.clear();
  }
  kind_ = kind;
  work_ = std::bit_width(work);
  const auto next = kinds_.find(kind);
  std::size_t offset = 0;
  if (next != kinds_.end() && !next->second.order.empty()) {
    const std::int64_t number = next->second.number;
    const std::size_t turn = turn_ + 1 < planned_turns_.size() ? turn_ + 1 : 0;
    const bool expected =
        cursor_.planned() && turn < planned_turns_.size() && planned_turns_[turn] == number;
    if (!expected || (turn == 0 && (disturbed_ || measured_))) {
      PENSTOCK_TRY(plan_turns(turns_.from(number)));
    } else {
      turn_ = turn;
      offset = turn == 0 ? 0 : turn_ends_[turn - 1];
    }
  }
  cursor_.start_at(static_cast<std::int64_t>(offset));
  return issue_loads();
}

PagerStats Pager::stats() {
  const std::lock_guard lock(mutex_);
  PagerStats stats;
  stats.counters = counters_;
  stats.counters.bytes_out += table_.sent_bytes();
  stats.stalls = stalls_.summary();
  stats.budget = pool_.budget();
  stats.device_bytes = pool_.held();
  stats.peak_device_bytes = pool_.peak();
  stats.pinned_bytes = table_.pinned_bytes();
  stats.host_bytes = table_.host_bytes();
  stats.paged_bytes = table_.paged_bytes();
  stats.encoded_bytes = table_.encoded_bytes();
  stats.code_bytes = table_.code_bytes();
  stats.pages = static_cast<std::uint64_t>(table_.pages());
  stats.uses = uses_.size();
  stats.slots = static_cast<std::uint64_t>(residents_.slots());
  if (cursor_.planned()) {
    stats.kept_pages = cursor_.plan().kept.size();
    stats.streamed_pages = cursor_.plan().loads.size();
    stats.stream_slots = static_cast<std::uint64_t>(cursor_.plan().stream_slots);
    stats.planned_bytes_in = cursor_.plan().bytes_in;
  }
  const auto loads = [](const Counters& at) { return at.prefetched_pages + at.demanded_pages; };
  stats.iteration_bytes_in = at_boundary_.bytes_in - before_.bytes_in;
  stats.iteration_bytes_out = at_boundary_.bytes_out - before_.bytes_out;
  stats.iteration_page_uses = at_boundary_.page_uses - before_.page_uses;
  stats.iteration_page_loads = loads(at_boundary_) - loads(before_);
  return stats;
}

}  // namespace penstock::engine
