// SPDX-License-Identifier: Apache-2.0
// Managed memory with residency in our own hands: groups of weights (a layer, or whatever is used
// together), each in one managed allocation, kept within a budget of device memory.  A prefix of
// every group stays (policy::keep_prefixes), the rest streams, one prefetch a group, a few groups
// ahead of their use; what is used up goes out before anything comes in, and the driver never has
// to evict, which on some versions of it hangs the GPU.
//
// Invariant: committed_, the bytes resident once every job submitted so far is done, never exceeds
// the budget; as jobs are carried out in order, neither does what is resident at any moment.
// Thread rule: any thread.  Nothing here waits for a transfer, except begin() for a group whose
// prefetch has not been issued yet, and resize().
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/managed/managed_mover.hpp"
#include "engine/paging/plan_cursor.hpp"
#include "engine/paging/recorder.hpp"
#include "engine/paging/stall_profile.hpp"
#include "policy/planning/prefixes.hpp"

namespace penstock::engine {

using GroupId = UseId;

struct GroupSpec {
  Bytes bytes = 0;
  bool on_host = false;  // never on the device, which reads it over the link: it has no uses
};

struct ManagedSetOptions {
  Bytes budget = 0;
  std::int32_t look_ahead = 2;  // groups on their way beyond the running one; 0 = none
  MoverOptions mover;
  bool on_demand = false;  // advice alone: the driver pages by faults, and begin() is refused
  bool allow_oversubscription = false;
  std::int32_t profile_every = 0;
};

struct ManagedSetStats {
  MoverCounters moved;
  StallSummary profile;
  std::uint64_t uses = 0;
  std::uint64_t hits = 0;    // resident, or on its way, when its use began
  std::uint64_t stalls = 0;  // not arrived when its use began
  std::uint64_t iterations = 0;
  std::uint64_t plans = 0;
  std::uint64_t mismatches = 0;
  Bytes budget = 0;
  Bytes total = 0;      // of the groups that come and go
  Bytes host_only = 0;  // of those that stay on the host
  Bytes kept = 0;
  Bytes planned_bytes_in = 0;
  std::uint64_t groups = 0;       // those that come and go
  std::uint64_t kept_groups = 0;  // wholly
  std::int32_t look_ahead = 0;    // what the budget allows of the one asked for
  Bytes iteration_bytes_in = 0;   // of the last whole iteration
  Bytes iteration_bytes_out = 0;
  std::uint64_t iteration_uses = 0;
  std::uint64_t iteration_hits = 0;
  std::uint64_t iteration_stalls = 0;
};

class ManagedSet {
 public:
  // One allocation for each group (rounded up to the granularity), on the host, for the caller to
  // fill before the first begin() or iteration().  kOutOfMemory when the budget, or the sum of the
  // sizes, exceeds the device's free memory and oversubscription is not allowed, or when the budget
  // does not hold the two largest groups; kUnsupported without concurrent managed access.  Leaves
  // nothing behind when it fails.
  static Result<std::unique_ptr<ManagedSet>> create(driver::Driver& driver,
                                                    const ManagedSetOptions& options,
                                                    const std::vector<GroupSpec>& groups);
  ~ManagedSet();
  ManagedSet(const ManagedSet&) = delete;
  ManagedSet& operator=(const ManagedSet&) = delete;

  Result<Span> group(GroupId id) const;
  // The group is resident for what `stream` is given from here on / all that reads it was given.
  // Uses may nest; a group that is not declared may still be read, at the price of page faults.
  Status begin(GroupId id, driver::Stream stream);
  Status end(GroupId id, driver::Stream stream);
  // The uses since the last call were one iteration.
  Status iteration();
  // Waits until what no longer fits is gone.  kOutOfMemory, and no change, below smallest() and
  // beyond the free memory there was at creation.
  Status resize(Bytes budget);
  // The smallest budget for the groups, and for the uses seen so far.
  [[nodiscard]] Bytes smallest() const;
  ManagedSetStats stats();

 private:
  struct Group {
    Span span;
    bool on_host = false;
    Bytes resident = 0;  // a prefix: what is on the device once all jobs are done
    Bytes kept = 0;      // of it, what stays
    std::int32_t active = 0;
    driver::Event arrived{};
    ManagedMover::Ticket ticket = 0;  // of the job that last brought some of it in
    bool has_arrived = true;          // known to have: no need to ask, or to let a stream wait
    std::vector<std::pair<driver::Stream, driver::Event>> last_uses;
  };

  ManagedSet(driver::Driver& driver, const ManagedSetOptions& options)
      : driver_(driver),
        options_(options),
        stalls_(driver, options.profile_every),
        mover_(driver, options.mover) {}
  Status check_oversubscription(const char* what, Bytes bytes) const;
  Status check_budget(Bytes budget) const;
  Status allocate(const GroupSpec& spec);
  Status advise(const Group& group);
  Status check_use(GroupId id) const;
  Group& at(GroupId id) { return groups_[nth(id)]; }
  Status enter(std::unique_lock<std::mutex>& lock, GroupId id, driver::Stream stream);
  Result<bool> has_arrived(Group& group);
  Status mark_last_use(Group& group, driver::Stream stream);
  std::optional<ManagedMover::Ticket> make_room(Span in, driver::Event arrived, std::int64_t until,
                                                bool demanded);
  bool choose_victims(Bytes bytes, std::int64_t until, bool keep,
                      std::vector<std::pair<GroupId, Bytes>>& chosen);
  bool load(GroupId id, std::int64_t until, bool demanded);
  void load_ahead();
  Status make_plan();
  [[nodiscard]] Bytes needed() const;
  void take_iteration_figures();

  driver::Driver& driver_;
  ManagedSetOptions options_;
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
  std::vector<Use> uses_;  // use g is group g
  Bytes free_at_start_ = 0;
  Bytes total_ = 0;
  Bytes host_only_ = 0;
  Bytes committed_ = 0;
  std::int32_t look_ahead_ = 0;
  Bytes planned_bytes_in_ = 0;
  StallProfile stalls_;
  Recorder recorder_;
  policy::Sequence sequence_;
  PlanCursor cursor_;  // for the order and the distances alone: its plan is empty
  std::vector<std::pair<GroupId, driver::Stream>> active_;
  ManagedSetStats counts_;
  ManagedSetStats at_boundary_;  // when the last iteration ended
  ManagedMover mover_;           // last: its thread ends before anything it moves goes
};

}  // namespace penstock::engine
