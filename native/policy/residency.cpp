// SPDX-License-Identifier: Apache-2.0
#include "policy/residency.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "policy/schedule.hpp"
#include "policy/sequence.hpp"

namespace penstock::policy {
namespace {

// The resident pages in the order of eviction.  Entries go stale when their page is used again or
// evicted; a stale one is recognised by its stamp and dropped when its turn comes.
class Pool {
 public:
  // With `in_turn` pages are released in the order of their priorities, and a queue does for a
  // heap.
  Pool(std::size_t pages, std::int32_t slots, bool in_turn)
      : stamp_(pages, 0), free_(slots), in_turn_(in_turn) {}

  [[nodiscard]] bool resident(PageId page) const { return stamp_[index(page)] != 0; }

  // The page belongs to the running step: its old entry no longer counts.
  void protect(PageId page) { stamp_[index(page)] = ++clock_; }

  // Take a slot, evicting the page of the lowest priority when none is free.
  void take() {
    if (free_ > 0) {
      --free_;
      return;
    }
    for (;;) {
      const Entry victim = pop();
      if (stamp_[index(victim.page)] == victim.stamp) {
        stamp_[index(victim.page)] = 0;
        return;
      }
    }
  }

  // The step is over: the page may be evicted again, lowest priority first.
  void release(PageId page, std::int64_t priority) {
    if (entries_.size() > 4 * stamp_.size()) drop_stale();
    entries_.push_back({priority, -page, page, stamp_[index(page)]});
    if (!in_turn_) std::push_heap(entries_.begin(), entries_.end(), std::greater<>{});
  }

 private:
  struct Entry {
    std::int64_t priority;
    PageId tie;  // the higher page goes first
    PageId page;
    std::int64_t stamp;
    auto operator<=>(const Entry&) const = default;
  };

  static std::size_t index(PageId page) { return static_cast<std::size_t>(page); }

  Entry pop() {
    if (in_turn_) return entries_[static_cast<std::size_t>(popped_++)];
    std::pop_heap(entries_.begin(), entries_.end(), std::greater<>{});
    const Entry last = entries_.back();
    entries_.pop_back();
    return last;
  }

  void drop_stale() {
    entries_.erase(entries_.begin(), entries_.begin() + popped_);
    popped_ = 0;
    std::erase_if(entries_, [&](const Entry& e) { return stamp_[index(e.page)] != e.stamp; });
    if (!in_turn_) std::make_heap(entries_.begin(), entries_.end(), std::greater<>{});
  }

  std::vector<std::int64_t> stamp_;  // by page: of its last protect(), 0 when not resident
  std::int64_t clock_ = 0;
  std::int32_t free_;
  bool in_turn_;
  std::vector<Entry> entries_;  // a heap, or a queue whose first `popped_` are gone
  std::ptrdiff_t popped_ = 0;
};

// For every access in sequence order, how many steps later the page is used again.
std::vector<StepId> steps_to_next_use(const Sequence& sequence) {
  const UseIndex index(sequence);
  std::vector<UseIndex::Id> next(sequence.page_bytes.size());
  for (std::size_t page = 0; page < next.size(); ++page) {
    next[page] = index.begin(static_cast<PageId>(page));
  }
  std::vector<StepId> distance;
  distance.reserve(index.uses());
  for (const Step& step : sequence.steps) {
    for (const PageId page : step.pages) {
      distance.push_back(index.gap_length(next[static_cast<std::size_t>(page)]++) + 1);
    }
  }
  return distance;
}

class Replayer {
 public:
  Replayer(const Sequence& sequence, std::int32_t slots, Replacement replacement)
      : sequence_(sequence),
        replacement_(replacement),
        pool_(sequence.page_bytes.size(), slots, replacement == Replacement::kLru),
        arrival_(replacement == Replacement::kFifo ? sequence.page_bytes.size() : 0, 0) {
    if (replacement == Replacement::kBelady) distance_ = steps_to_next_use(sequence);
  }

  Traffic iterate(std::vector<bool>* hits) {
    Traffic traffic;
    std::size_t access = 0;
    for (const Step& step : sequence_.steps) {
      missing_.clear();
      for (const PageId page : step.pages) {
        const bool hit = pool_.resident(page);
        if (hits != nullptr) hits->push_back(hit);
        if (hit) {
          pool_.protect(page);
        } else {
          missing_.push_back(page);
        }
      }
      for (const PageId page : missing_) {
        pool_.take();
        pool_.protect(page);
        if (!arrival_.empty()) arrival_[static_cast<std::size_t>(page)] = ++arrivals_;
        traffic.bytes_in += sequence_.page_bytes[static_cast<std::size_t>(page)];
      }
      traffic.uses += static_cast<std::int64_t>(step.pages.size());
      traffic.loads += static_cast<std::int64_t>(missing_.size());
      for (const PageId page : step.pages) pool_.release(page, priority(page, access++));
      ++step_;
    }
    return traffic;
  }

 private:
  [[nodiscard]] std::int64_t priority(PageId page, std::size_t access) {
    switch (replacement_) {
      case Replacement::kLru:
        return ++uses_;
      case Replacement::kFifo:
        return arrival_[static_cast<std::size_t>(page)];
      case Replacement::kBelady:
        break;
    }
    return -(step_ + distance_[access]);
  }

  const Sequence& sequence_;
  Replacement replacement_;
  Pool pool_;
  std::vector<StepId> distance_;       // Belady
  std::vector<std::int64_t> arrival_;  // FIFO
  std::int64_t arrivals_ = 0;
  std::int64_t uses_ = 0;
  std::int64_t step_ = 0;
  std::vector<PageId> missing_;
};

Status check_arguments(const Sequence& sequence, std::int32_t slots, int iterations) {
  PENSTOCK_TRY(validate(sequence));
  if (slots < 0 || iterations < 1) {
    return {Code::kInvalidArgument, "a replay needs 0 slots or more and 1 iteration or more, not " +
                                        std::to_string(slots) + " and " +
                                        std::to_string(iterations)};
  }
  if (const std::int32_t needed = smallest_pool(sequence); slots < needed) {
    return {Code::kOutOfMemory, "the largest step needs " + std::to_string(needed) +
                                    " slots and there are " + std::to_string(slots)};
  }
  return {};
}

}  // namespace

Result<std::vector<Traffic>> replay_iterations(const Sequence& sequence, std::int32_t slots,
                                               Replacement replacement, int iterations) {
  PENSTOCK_TRY(check_arguments(sequence, slots, iterations));
  Replayer replayer(sequence, slots, replacement);
  std::vector<Traffic> traffic;
  for (int i = 0; i < iterations; ++i) traffic.push_back(replayer.iterate(nullptr));
  return traffic;
}

Result<Traffic> replay(const Sequence& sequence, std::int32_t slots, Replacement replacement,
                       int iterations) {
  PENSTOCK_ASSIGN(const std::vector<Traffic> all,
                  replay_iterations(sequence, slots, replacement, iterations));
  return all.back();
}

Result<std::vector<bool>> replay_hits(const Sequence& sequence, std::int32_t slots,
                                      Replacement replacement, int iterations) {
  PENSTOCK_TRY(check_arguments(sequence, slots, iterations));
  Replayer replayer(sequence, slots, replacement);
  for (int i = 1; i < iterations; ++i) replayer.iterate(nullptr);
  std::vector<bool> hits;
  replayer.iterate(&hits);
  return hits;
}

}  // namespace penstock::policy
