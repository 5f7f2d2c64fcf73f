// SPDX-License-Identifier: Apache-2.0
// check(): a plan against everything that the engine relies on.  Written from the contract in
// schedule.hpp, not from the way schedule() works, so that the two do not share their mistakes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "policy/planning/schedule.hpp"
#include "policy/planning/sequence.hpp"

namespace penstock::policy {
namespace {

class Checker {
 public:
  Checker(const Sequence& sequence, const ScheduleOptions& options, const Plan& plan)
      : sequence_(sequence),
        plan_(plan),
        steps_(static_cast<StepId>(sequence.steps.size())),
        slots_(options.slots),
        kept_slot_(nth(std::max(0, options.slots)), false),
        kept_page_(sequence.page_bytes.size(), false) {}

  Status run() {
    PENSTOCK_TRY(check_kept());
    PENSTOCK_TRY(check_loads());
    PENSTOCK_TRY(check_slots());
    PENSTOCK_TRY(check_uses());
    return check_totals();
  }

 private:
  template <class... Pieces>
  static Status wrong(const Pieces&... what) {
    return Status(Code::kInternal, "plan: ", what...);
  }
  static std::string name(const Load& load) {
    return text("the load of page ", load.page, " for steps ", load.first, " to ", load.last,
                " in slot ", load.slot);
  }

  Status check_kept() {
    for (const Kept& kept : plan_.kept) {
      if (kept.page < 0 || nth(kept.page) >= kept_page_.size() || kept.slot < 0 ||
          kept.slot >= slots_) {
        return wrong("kept page ", kept.page, " or its slot ", kept.slot, " is out of range");
      }
      if (kept_page_[nth(kept.page)] || kept_slot_[nth(kept.slot)]) {
        return wrong("kept page ", kept.page, " or its slot ", kept.slot, " is there twice");
      }
      kept_page_[nth(kept.page)] = kept_slot_[nth(kept.slot)] = true;
    }
    return {};
  }

  Status check_loads() const {
    for (std::size_t i = 0; i < plan_.loads.size(); ++i) {
      const Load& load = plan_.loads[i];
      if (load.page < 0 || nth(load.page) >= kept_page_.size() || load.slot < 0 ||
          load.slot >= slots_ || load.first < 0 || load.first >= steps_ || load.last < 0 ||
          load.last >= steps_) {
        return wrong(name(load), " is out of range");
      }
      if (kept_page_[nth(load.page)] || kept_slot_[nth(load.slot)]) {
        return wrong(name(load), " meets a kept page");
      }
      if (i == 0) continue;
      const Load& before = plan_.loads[i - 1];
      if (std::pair(before.first, before.page) >= std::pair(load.first, load.page)) {
        return wrong(name(load), " is out of order");
      }
    }
    return {};
  }

  // One iteration, starting with what the one before left behind.
  Status check_slots() const {
    std::vector<const Load*> holds(nth(slots_), nullptr);
    const auto put = [&](const Load& load, bool free) {
      if (!free) return wrong(name(load), " meets ", name(*holds[nth(load.slot)]));
      holds[nth(load.slot)] = &load;
      return Status{};
    };
    for (const Load& load : plan_.loads) {
      if (load.last >= load.first) continue;
      PENSTOCK_TRY(put(load, holds[nth(load.slot)] == nullptr));
    }
    std::vector<bool> carried(nth(slots_));
    for (std::size_t slot = 0; slot < carried.size(); ++slot)
      carried[slot] = holds[slot] != nullptr;
    for (const Load& load : plan_.loads) {
      const Load* const other = holds[nth(load.slot)];
      // A span carried over from the iteration before ends in this one; another that wraps does
      // not.
      const bool ends =
          other != nullptr && (carried[nth(load.slot)] || other->last >= other->first);
      PENSTOCK_TRY(put(load, other == nullptr || (ends && other->last < load.first)));
      carried[nth(load.slot)] = false;
    }
    return {};
  }

  Status check_uses() const {
    const UseIndex index(sequence_);
    std::vector<std::int32_t> covered(index.uses(), 0);
    for (const Load& load : plan_.loads) {
      UseIndex::Id use = index.find(load.page, load.first);
      if (use == index.end(load.page)) return wrong(name(load), " starts where it is not used");
      for (;; use = index.next(use)) {
        if (covered[use]++ != 0) return wrong(name(load), " covers a use twice");
        if (index.step(use) == load.last) break;
      }
    }
    for (UseIndex::Id use = 0; use < index.uses(); ++use) {
      if (covered[use] == 0 && !kept_page_[nth(index.page(use))]) {
        return wrong("page ", index.page(use), " is missing at step ", index.step(use));
      }
    }
    return {};
  }

  Status check_totals() const {
    Bytes bytes = 0;
    std::vector<bool> used(nth(slots_), false);
    for (const Load& load : plan_.loads) {
      bytes += sequence_.page_bytes[nth(load.page)];
      used[nth(load.slot)] = true;
    }
    const auto stream_slots = std::count(used.begin(), used.end(), true);
    if (bytes != plan_.bytes_in || stream_slots != plan_.stream_slots) {
      return wrong("it says ", plan_.bytes_in, " bytes through ", plan_.stream_slots,
                   " slots; the loads are ", bytes, " through ", stream_slots);
    }
    return {};
  }

  const Sequence& sequence_;
  const Plan& plan_;
  StepId steps_;
  SlotId slots_;
  std::vector<bool> kept_slot_;
  std::vector<bool> kept_page_;
};

}  // namespace

Status check(const Sequence& sequence, const ScheduleOptions& options, const Plan& plan) {
  PENSTOCK_TRY(validate(sequence));
  return Checker(sequence, options, plan).run();
}

}  // namespace penstock::policy
