// SPDX-License-Identifier: Apache-2.0
#include "engine/managed/managed_set.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

namespace penstock::engine {
namespace {

std::string mib(Bytes bytes) { return text(divide_up(bytes, kMiB), " MiB"); }

Bytes sum(const std::vector<Bytes>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Bytes{0});
}

Status check_options(const driver::DeviceInfo& device, const ManagedSetOptions& options) {
  if (!device.concurrent_managed) {
    return Status(Code::kUnsupported, device.name,
                  " cannot move managed memory while it works (concurrent managed access is 0)");
  }
  constexpr std::int32_t kMostAhead = 1 << 16;
  constexpr std::int32_t kMostStreams = 64;
  if (options.look_ahead < 0 || options.look_ahead > kMostAhead || options.mover.streams < 0 ||
      options.mover.streams > kMostStreams) {
    return invalid("a look-ahead of ", options.look_ahead, " groups on ", options.mover.streams,
                   " streams");
  }
  if (options.mover.eviction == Eviction::kCollapse && !options.mover.read_mostly) {
    return invalid(
        "evicting by collapse needs ReadMostly: without it there is no second copy to keep");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ManagedSet>> ManagedSet::create(driver::Driver& driver,
                                                       const ManagedSetOptions& options,
                                                       const std::vector<GroupSpec>& groups) {
  PENSTOCK_TRY(check_options(driver.info(), options));
  std::unique_ptr<ManagedSet> set(new ManagedSet(driver, options));
  // Until an iteration has been seen, take the order of creation for the order of use.
  std::vector<UseId> order;
  for (UseId id = 0; nth(id) < groups.size(); ++id) {
    const auto& [bytes, on_host] = groups[nth(id)];
    if (bytes == 0) return invalid("a managed group of 0 bytes");
    const Bytes size = align_up(bytes, driver.info().granularity);
    (on_host ? set->host_only_ : set->total_) += size;
    set->sequence_.page_bytes.push_back(on_host ? 0 : size);
    if (on_host) continue;
    set->sequence_.steps.push_back({.pages = {id}});
    order.push_back(id);
  }
  PENSTOCK_ASSIGN(const driver::MemoryInfo memory, driver.memory_info());
  set->free_at_start_ = memory.free;
  PENSTOCK_TRY(set->check_oversubscription("managed memory", set->total_));
  PENSTOCK_TRY(set->check_budget(options.budget));
  set->groups_.reserve(groups.size());
  for (const GroupSpec& spec : groups) PENSTOCK_TRY(set->allocate(spec));
  if (options.on_demand) return set;
  set->cursor_.adopt({}, std::move(order), set->sequence_);
  PENSTOCK_TRY(set->make_plan());
  PENSTOCK_TRY(set->stalls_.next_iteration(0));
  PENSTOCK_TRY(set->mover_.start());
  return set;
}

Status ManagedSet::check_oversubscription(const char* what, Bytes bytes) const {
  if (options_.allow_oversubscription || bytes <= free_at_start_) return {};
  return Status(Code::kOutOfMemory, what, " of ", mib(bytes), " would oversubscribe the ",
                mib(free_at_start_),
                " that were free on the device, which hangs the GPU with some drivers; "
                "oversubscription must be allowed explicitly");
}

Status ManagedSet::check_budget(Bytes budget) const {
  PENSTOCK_TRY(check_oversubscription("a budget", budget));
  if (options_.on_demand || budget >= needed()) return {};
  return Status(Code::kOutOfMemory, "a budget of ", mib(budget),
                " is below the smallest that works, ", mib(needed()),
                " for the groups that are on the device together");
}

Status ManagedSet::allocate(const GroupSpec& spec) {
  const Bytes size = align_up(spec.bytes, driver_.info().granularity);
  PENSTOCK_ASSIGN(const Addr address, driver_.managed_alloc(size));
  Group& group = groups_.emplace_back();
  group.span = {address, size};
  group.on_host = spec.on_host;
  uses_.push_back({{static_cast<PageId>(groups_.size() - 1)}, {}});
  PENSTOCK_TRY(advise(group));
  if (options_.on_demand || group.on_host) return {};
  PENSTOCK_ASSIGN(group.arrived, driver_.create_event(false));
  return {};
}

Status ManagedSet::advise(const Group& group) {
  using driver::Advice;
  const auto& [address, size] = group.span;
  if (options_.on_demand && !group.on_host) {
    return options_.mover.read_mostly ? driver_.managed_advise(address, size, Advice::kReadMostly)
                                      : Status{};
  }
  // Where duplicates collapse to, and what a stray access maps instead of migrating.
  PENSTOCK_TRY(driver_.managed_advise(address, size, Advice::kPreferHost));
  return group.on_host ? driver_.managed_advise(address, size, Advice::kMapOnDevice) : Status{};
}

ManagedSet::~ManagedSet() {
  // Kernels of uses that never ended (a failure in between) may still be reading.
  bool over = true;
  for (const auto& [id, stream] : active_) over = driver_.synchronize(stream).ok() && over;
  for (const Group& group : groups_) {
    for (const auto& [stream, event] : group.last_uses) {
      over = driver_.synchronize(event).ok() && over;
    }
  }
  if (!over) (void)driver_.synchronize_device();
  mover_.stop();
  for (const Group& group : groups_) {
    for (const auto& [stream, event] : group.last_uses) (void)driver_.destroy_event(event);
    if (group.arrived != driver::Event{}) (void)driver_.destroy_event(group.arrived);
    (void)driver_.managed_free(group.span.address);
  }
}

Result<Span> ManagedSet::group(GroupId id) const {
  if (id >= 0 && nth(id) < groups_.size()) return groups_[nth(id)].span;
  return invalid("there is no managed group ", id, " of ", groups_.size());
}

Status ManagedSet::check_use(GroupId id) const {
  PENSTOCK_TRY(group(id).status());
  if (options_.on_demand) {
    return invalid("managed memory that the driver pages on demand has no uses");
  }
  if (!groups_[nth(id)].on_host) return {};
  return invalid("group ", id, " stays on the host and has no uses");
}

Status ManagedSet::begin(GroupId id, driver::Stream stream) {
  PENSTOCK_TRY(check_use(id));
  std::unique_lock lock(mutex_);
  room_for(active_, active_.size() + 1);
  if (cursor_.begin(id) != 0) ++counts_.mismatches;
  recorder_.begin(id);
  ++at(id).active;  // from here on it cannot be chosen as a victim
  active_.emplace_back(id, stream);
  Status status = guarded([&] { return enter(lock, id, stream); });
  if (!lock.owns_lock()) lock.lock();
  if (!status.ok()) {
    --at(id).active;
    recorder_.end(id);
    const auto found = std::find(active_.rbegin(), active_.rend(), std::pair(id, stream));
    active_.erase(std::next(found).base());
  }
  return status;
}

// Make the group resident for the stream.  The lock is dropped while the job is not issued.
Status ManagedSet::enter(std::unique_lock<std::mutex>& lock, GroupId id, driver::Stream stream) {
  PENSTOCK_TRY(stalls_.use_begins(stream));
  Group& group = at(id);
  ++counts_.uses;
  if (group.resident == group.span.bytes) {
    ++counts_.hits;
  } else if (!load(id, 0, true)) {
    return Status(Code::kOutOfMemory, "the groups in use together, and the ", mib(group.span.bytes),
                  " of group ", id, ", exceed the budget of ", mib(options_.budget));
  }
  load_ahead();
  PENSTOCK_ASSIGN(const bool arrived, has_arrived(group));
  if (arrived) return {};
  ++counts_.stalls;
  PENSTOCK_TRY(stalls_.wait_begins(id, stream));
  const ManagedMover::Ticket ticket = group.ticket;
  lock.unlock();
  const Status issued = mover_.wait_issued(ticket);
  lock.lock();
  PENSTOCK_TRY(issued);
  PENSTOCK_TRY(driver_.wait(stream, group.arrived));
  return stalls_.wait_ends(stream);
}

Result<bool> ManagedSet::has_arrived(Group& group) {
  if (group.has_arrived) return true;
  if (!mover_.issued(group.ticket)) return false;
  const Status over = driver_.query(group.arrived);
  if (over.code() == Code::kNotReady) return false;
  PENSTOCK_TRY(over);
  group.has_arrived = true;
  return true;
}

Status ManagedSet::end(GroupId id, driver::Stream stream) {
  PENSTOCK_TRY(check_use(id));
  const std::lock_guard lock(mutex_);
  auto found = std::find(active_.rbegin(), active_.rend(), std::pair(id, stream));
  if (found == active_.rend()) {
    found = std::find_if(active_.rbegin(), active_.rend(),
                         [&](const auto& entry) { return entry.first == id; });
  }
  if (found == active_.rend()) return invalid("group ", id, " ends but has not begun");
  const driver::Stream begun_on = found->second;
  active_.erase(std::next(found).base());
  recorder_.end(id);
  Status status = mark_last_use(at(id), stream);
  if (begun_on != stream) {
    if (Status other = mark_last_use(at(id), begun_on); status.ok()) status = std::move(other);
  }
  --at(id).active;
  if (status.ok()) status = stalls_.use_ends(stream);
  load_ahead();
  return status;
}

// Where the mark cannot be made the host waits instead: the group must not go while it is read.
Status ManagedSet::mark_last_use(Group& group, driver::Stream stream) {
  Status status = guarded([&]() -> Status {
    auto found = std::find_if(group.last_uses.begin(), group.last_uses.end(),
                              [&](const auto& use) { return use.first == stream; });
    if (found == group.last_uses.end()) {
      group.last_uses.reserve(group.last_uses.size() + 1);
      PENSTOCK_ASSIGN(const driver::Event made, driver_.create_event(false));
      found = group.last_uses.insert(group.last_uses.end(), {stream, made});
    }
    return driver_.record(found->second, stream);
  });
  if (!status.ok()) (void)driver_.synchronize(stream);
  return status;
}

// Which groups give up how much so that `bytes` more fit: those not in use that are needed last,
// and later than in `until` steps.  With `keep`, only what is not meant to stay.
bool ManagedSet::choose_victims(Bytes bytes, std::int64_t until, bool keep,
                                std::vector<std::pair<GroupId, Bytes>>& chosen) {
  struct Candidate {
    std::int64_t distance;
    GroupId id;
    Bytes bytes;
  };
  std::vector<Candidate> candidates;
  for (GroupId id = 0; nth(id) < groups_.size(); ++id) {
    const Group& group = at(id);
    const Bytes floor = keep ? std::min(group.kept, group.resident) : 0;
    const std::int64_t distance = cursor_.distance(id);
    if (group.active > 0 || group.resident == floor || distance <= until) continue;
    candidates.push_back({distance, id, group.resident - floor});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.distance > b.distance; });
  Bytes room = options_.budget > committed_ ? options_.budget - committed_ : 0;
  const Bytes over = committed_ > options_.budget ? committed_ - options_.budget : 0;
  const Bytes wanted = bytes + over;
  chosen.clear();
  for (const Candidate& candidate : candidates) {
    if (room >= wanted) break;
    const Bytes taken = std::min(candidate.bytes, wanted - room);
    chosen.emplace_back(candidate.id, taken);
    room += taken;
  }
  return room >= wanted;
}

// Submits a job that makes room for `in`, and brings that in; no ticket where nothing can leave.
std::optional<ManagedMover::Ticket> ManagedSet::make_room(Span in, driver::Event arrived,
                                                          std::int64_t until, bool demanded) {
  std::vector<std::pair<GroupId, Bytes>> chosen;
  const bool found = choose_victims(in.bytes, until, true, chosen) ||
                     (demanded && choose_victims(in.bytes, -1, false, chosen));
  if (!found) return std::nullopt;
  if (chosen.empty() && in.bytes == 0) return ManagedMover::Ticket{0};
  MoveJob job{{}, in, arrived};
  for (const auto& [id, taken] : chosen) {
    const Group& group = at(id);
    Departure& out = job.out.emplace_back();
    out.span = {group.span.address + group.resident - taken, taken};
    out.after.push_back(group.arrived);
    for (const auto& [stream, event] : group.last_uses) out.after.push_back(event);
  }
  const ManagedMover::Ticket ticket = mover_.submit(std::move(job));
  for (const auto& [id, taken] : chosen) {
    at(id).resident -= taken;
    committed_ -= taken;
  }
  return ticket;
}

// Submit the job that brings in what is missing of a group that is needed in `until` steps.
bool ManagedSet::load(GroupId id, std::int64_t until, bool demanded) {
  Group& group = at(id);
  const Bytes missing = group.span.bytes - group.resident;
  const auto ticket =
      make_room({group.span.address + group.resident, missing}, group.arrived, until, demanded);
  if (!ticket) return false;
  group.resident = group.span.bytes;
  committed_ += missing;
  group.has_arrived = false;
  group.ticket = *ticket;
  return true;
}

// Keep the next few groups that stream on their way, for as long as they fit.
void ManagedSet::load_ahead() {
  const std::vector<UseId>& order = cursor_.order();
  const auto steps = static_cast<std::int64_t>(order.size());
  // A steady pass has one job for each group ahead and one for the running use.
  const auto most_queued = 2 * nth(look_ahead_ + 1);
  std::int32_t left = look_ahead_;
  for (std::int64_t ahead = 0; ahead < steps && left > 0; ++ahead) {
    const GroupId id = order[nth((cursor_.begun() + ahead) % steps)];
    const Group& group = at(id);
    const bool whole = group.resident == group.span.bytes;
    if (group.active > 0 || (whole && group.kept == group.span.bytes)) continue;
    if (!whole && (mover_.queued() >= most_queued || !load(id, ahead, false))) return;
    --left;
  }
}

Status ManagedSet::make_plan() {
  PENSTOCK_ASSIGN(policy::Prefixes prefixes,
                  policy::keep_prefixes(sequence_, {.budget = options_.budget,
                                                    .granularity = driver_.info().granularity,
                                                    .look_ahead = options_.look_ahead}));
  for (std::size_t id = 0; id < groups_.size(); ++id) groups_[id].kept = prefixes.kept[id];
  look_ahead_ = prefixes.look_ahead;
  planned_bytes_in_ = prefixes.bytes_in;
  ++counts_.plans;
  return {};
}

void ManagedSet::take_iteration_figures() {
  ManagedSetStats now = counts_;
  now.moved = mover_.counters();
  counts_.iteration_bytes_in = now.moved.bytes_in - at_boundary_.moved.bytes_in;
  counts_.iteration_bytes_out = now.moved.bytes_out - at_boundary_.moved.bytes_out;
  counts_.iteration_uses = now.uses - at_boundary_.uses;
  counts_.iteration_hits = now.hits - at_boundary_.hits;
  counts_.iteration_stalls = now.stalls - at_boundary_.stalls;
  at_boundary_ = now;
}

Status ManagedSet::iteration() {
  const std::lock_guard lock(mutex_);
  if (!recorder_.empty()) {
    ++counts_.iterations;
    take_iteration_figures();
    PENSTOCK_TRY(stalls_.next_iteration(counts_.iterations));
    std::vector<UseId> order = recorder_.order();
    // A prefix of the order is an iteration that was broken off, not a new one.
    const bool known = order.size() <= cursor_.order().size() &&
                       std::equal(order.begin(), order.end(), cursor_.order().begin());
    if (!known && active_.empty()) {
      sequence_ = recorder_.sequence(uses_, sequence_.page_bytes);
      cursor_.adopt({}, std::move(order), sequence_);
      PENSTOCK_TRY(make_plan());
    }
    recorder_.clear();
  }
  cursor_.start_at(0);
  load_ahead();
  return {};
}

// Two groups side by side, one in use and one on its way (less would never overlap anything), or
// the groups of one step.
Bytes ManagedSet::needed() const {
  std::vector<Bytes> sizes = sequence_.page_bytes;
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  sizes.resize(std::min<std::size_t>(sizes.size(), 2));
  Bytes needed = sum(sizes);
  for (const policy::Step& step : sequence_.steps) {
    Bytes together = 0;
    for (const PageId id : step.pages) together += sequence_.page_bytes[nth(id)];
    needed = std::max(needed, together);
  }
  return needed;
}

Bytes ManagedSet::smallest() const {
  const std::lock_guard lock(mutex_);
  return options_.on_demand ? 0 : needed();
}

Status ManagedSet::resize(Bytes budget) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(check_budget(budget));
  const Bytes before = std::exchange(options_.budget, budget);
  if (options_.on_demand) return {};
  std::optional<ManagedMover::Ticket> ticket;
  const Status status = guarded([&]() -> Status {
    PENSTOCK_TRY(make_plan());
    ticket = make_room({}, {}, -1, true);
    if (ticket) return {};
    return Status(Code::kOutOfMemory, "the groups in use exceed a budget of ", mib(budget));
  });
  if (status.ok()) return mover_.wait_issued(*ticket);
  options_.budget = before;
  (void)guarded([this] { return make_plan(); });
  return status;
}

ManagedSetStats ManagedSet::stats() {
  const std::lock_guard lock(mutex_);
  ManagedSetStats stats = counts_;
  stats.moved = mover_.counters();
  stats.profile = stalls_.summary();
  stats.budget = options_.budget;
  stats.total = total_;
  stats.host_only = host_only_;
  for (const Group& group : groups_) {
    if (group.on_host) continue;
    ++stats.groups;
    stats.kept += group.kept;
    stats.kept_groups += group.kept == group.span.bytes ? 1 : 0;
  }
  stats.look_ahead = look_ahead_;
  stats.planned_bytes_in = planned_bytes_in_;
  return stats;
}

}  // namespace penstock::engine
