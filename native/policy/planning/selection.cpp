// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/selection.hpp"

#include <map>
#include <tuple>
#include <utility>

#include "policy/planning/lru.hpp"
#include "policy/planning/occupancy.hpp"
#include "policy/planning/streams.hpp"

namespace penstock::policy {
namespace {

using Gap = UseIndex::Id;

// Steps that the covers of long gaps may have in all; gaps beyond it, the shorter ones, are not
// shared out but kept where they fit.  Bounds the time for sequences with no regularity at all.
constexpr std::int64_t kMostCovered = 1 << 19;

// A selection in the making.
class Selection {
 public:
  Selection(const UseIndex& index, std::int32_t capacity)
      : index_(index), capacity_(capacity), taken_(index.step_sizes()), kept_(index.uses(), 0) {
    for (Gap gap = 0; gap < index.uses(); ++gap) {
      if (index.gap_length(gap) == 0) kept_[gap] = 1;
    }
  }

  void keep(Gap gap) {
    if (kept_[gap] != 0) return;
    taken_.add(inside(gap), index_.gap_length(gap), 1);
    kept_[gap] = 1;
  }

  void keep_pages(const std::vector<PageId>& pages) {
    std::vector<std::int32_t> taken = index_.step_sizes();
    for (std::int32_t& t : taken) t += static_cast<std::int32_t>(pages.size());
    for (const PageId page : pages) {
      for (Gap use = index_.begin(page); use < index_.end(page); ++use) {
        --taken[nth(index_.step(use))];
        kept_[use] = 1;
      }
    }
    taken_ = Occupancy(taken);
  }

  // Each of these gaps, in this order, if it fits beside those kept before it.
  void keep_what_fits(const std::vector<Gap>& gaps) {
    // A step that is full stays full, so that most gaps are turned down without asking the tree.
    const std::vector<std::int32_t> full = full_steps_before();
    for (const Gap gap : gaps) {
      if (kept_[gap] == 0 && count(full, gap) == 0 &&
          taken_.max(inside(gap), index_.gap_length(gap)) < capacity_) {
        keep(gap);
      }
    }
  }

  [[nodiscard]] std::vector<std::int32_t> taken() const { return taken_.values(); }
  [[nodiscard]] KeptGaps result() && { return std::move(kept_); }

  // The gaps that have a step inside, shortest first.
  [[nodiscard]] std::vector<Gap> by_length() const {
    std::vector<std::size_t> start(nth(index_.steps()) + 1, 0);
    for (Gap gap = 0; gap < index_.uses(); ++gap) ++start[nth(index_.gap_length(gap)) + 1];
    const std::size_t free = start[1];
    for (std::size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
    std::vector<Gap> sorted(index_.uses() - free);
    for (Gap gap = 0; gap < index_.uses(); ++gap) {
      const auto length = nth(index_.gap_length(gap));
      if (length > 0) sorted[start[length]++ - free] = gap;
    }
    return sorted;
  }

 private:
  [[nodiscard]] StepId inside(Gap gap) const { return (index_.step(gap) + 1) % index_.steps(); }

  [[nodiscard]] std::vector<std::int32_t> full_steps_before() const {
    std::vector<std::int32_t> before{0};
    for (const std::int32_t t : taken_.values()) before.push_back(before.back() + (t >= capacity_));
    return before;
  }

  [[nodiscard]] std::int32_t count(const std::vector<std::int32_t>& before, Gap gap) const {
    const auto from = nth(inside(gap));
    const std::size_t to = from + nth(index_.gap_length(gap));
    const auto steps = nth(index_.steps());
    return to <= steps ? before[to] - before[from]
                       : before[steps] - before[from] + before[to - steps];
  }

  const UseIndex& index_;
  std::int32_t capacity_;
  Occupancy taken_;
  KeptGaps kept_;
};

// Groups by cover, told apart by a key that costs less than the cover.  Neighbours mostly share it.
template <class Key>
class Groups {
 public:
  template <class MakeCover>
  void add(const Key& key, Gap member, std::int32_t loads, MakeCover make_cover) {
    if (latest_ == number_.end() || latest_->first != key) {
      bool added = false;
      std::tie(latest_, added) = number_.try_emplace(key, groups_.size());
      if (added) groups_.push_back({make_cover(), {}, loads});
    }
    groups_[latest_->second].members.push_back(member);
  }
  [[nodiscard]] const std::vector<StreamGroup>& list() const { return groups_; }

 private:
  std::map<Key, std::size_t> number_;
  typename std::map<Key, std::size_t>::iterator latest_ = number_.end();
  std::vector<StreamGroup> groups_;
};

}  // namespace

KeptGaps select_pages(const Sequence& sequence, const UseIndex& index, std::int32_t capacity) {
  Selection selection(index, capacity);
  Groups<std::vector<StepId>> groups;
  std::vector<PageId> kept;
  for (PageId page = 0; page < index.pages(); ++page) {
    std::vector<StepId> cover;
    std::int32_t loads = 0;
    for (Gap use = index.begin(page); use < index.end(page); ++use) {
      cover.push_back(index.step(use));
      if (index.gap_length(use) > 0) ++loads;
    }
    if (loads == 0) continue;  // never used, or used all the time
    kept.push_back(page);
    groups.add(cover, index.begin(page), loads, [&] { return cover; });
  }
  const Streams streams(sequence, index, groups.list(), index.step_sizes(), capacity);
  std::vector<bool> streamed(sequence.page_bytes.size(), false);
  for (const Gap use : streams.choose()) streamed[nth(index.page(use))] = true;
  std::erase_if(kept, [&](PageId page) { return streamed[nth(page)]; });
  selection.keep_pages(kept);
  selection.keep_what_fits(selection.by_length());
  return std::move(selection).result();
}

KeptGaps select_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity) {
  Selection selection(index, capacity);
  const std::vector<Gap> gaps = selection.by_length();
  auto first_long = gaps.end();
  for (std::int64_t covered = 0; first_long != gaps.begin(); --first_long) {
    const StepId length = index.gap_length(*(first_long - 1));
    covered += index.steps() - length;
    if (2 * length < index.steps() || covered > kMostCovered) break;
  }
  selection.keep_what_fits({gaps.begin(), first_long});

  Groups<std::pair<StepId, StepId>> groups;
  for (auto at = first_long; at != gaps.end(); ++at) {
    const StepId first = index.step(index.next(*at));
    const StepId length = index.steps() - index.gap_length(*at);
    groups.add({first, length}, *at, 1, [&] {
      std::vector<StepId> cover;
      for (StepId i = 0; i < length; ++i) cover.push_back((first + i) % index.steps());
      return cover;
    });
  }
  const Streams streams(sequence, index, groups.list(), selection.taken(), capacity);
  std::vector<bool> streamed(index.uses(), false);
  for (const Gap gap : streams.choose()) streamed[gap] = true;
  for (auto at = first_long; at != gaps.end(); ++at) {
    if (!streamed[*at]) selection.keep(*at);
  }
  selection.keep_what_fits(gaps);
  return std::move(selection).result();
}

KeptGaps select_lru_gaps(const Sequence& sequence, const UseIndex& index, std::int32_t capacity) {
  Selection selection(index, capacity);
  const std::vector<bool> hits = replay_lru(sequence, capacity).hits;
  // Walk the uses in the order of the replay; a hit keeps the gap that ends there.
  std::vector<Gap> use(sequence.page_bytes.size());
  for (std::size_t page = 0; page < use.size(); ++page) {
    use[page] = index.begin(static_cast<PageId>(page));
  }
  auto hit = hits.begin();
  for (const Step& step : sequence.steps) {
    for (const PageId page : step.pages) {
      const Gap here = use[nth(page)]++;
      const Gap before = here == index.begin(page) ? index.end(page) - 1 : here - 1;
      if (*hit++) selection.keep(before);
    }
  }
  selection.keep_what_fits(selection.by_length());
  return std::move(selection).result();
}

}  // namespace penstock::policy
