// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/stay_put.hpp"

#include <algorithm>
#include <cstddef>

namespace penstock::policy {
namespace {

using Index = std::size_t;

class Places {
 public:
  Places(StepId steps, std::vector<Load>& loads)
      : steps_(steps), loads_(loads), gone_(loads.size(), false) {
    SlotId most = 0;
    for (const Load& load : loads) most = std::max(most, load.slot);
    in_slot_.resize(nth(most) + 1);
    for (Index i = 0; i < loads.size(); ++i) of(loads[i].slot).push_back(i);  // by first step
  }

  // The page of `before` is loaded next by `load`.  True when it need not be.
  bool save(Index before, Index load) {
    const Load& a = loads_[before];
    Load& b = loads_[load];
    const Index other = after(before);
    if (other == load) return join(before, load);
    if (other == before || ahead(a.last, b.first) > ahead(a.last, loads_[other].first))
      return false;
    Load& c = loads_[other];
    if (ahead(a.last, b.last) < ahead(a.last, c.first)) return join(before, load);
    // They trade places, if what follows in either slot allows it.
    if (a.slot == b.slot || b.slot == c.slot) return false;
    if (ahead(a.last, b.last) >= ahead(a.last, loads_[after(other)].first)) return false;
    const Index behind_b = after(load);
    if (behind_b != load && ahead(b.first, c.last) >= ahead(b.first, loads_[behind_b].first)) {
      return false;
    }
    remove(other);
    c.slot = b.slot;
    insert(other);
    return join(before, load);
  }

  void finish() {
    Index next = 0;
    for (Index i = 0; i < loads_.size(); ++i) {
      if (!gone_[i]) loads_[next++] = loads_[i];
    }
    loads_.resize(next);
  }

 private:
  // Steps from `from` to the next `to`, 1 to a whole iteration.
  [[nodiscard]] StepId ahead(StepId from, StepId to) const {
    return (to - from - 1 + steps_) % steps_ + 1;
  }

  std::vector<Index>& of(SlotId slot) { return in_slot_[nth(slot)]; }

  [[nodiscard]] Index after(Index load) {
    const auto& list = of(loads_[load].slot);
    auto at = std::find(list.begin(), list.end(), load);
    return ++at == list.end() ? list.front() : *at;
  }

  void remove(Index load) {
    auto& list = of(loads_[load].slot);
    list.erase(std::find(list.begin(), list.end(), load));
  }

  void insert(Index load) {
    auto& list = of(loads_[load].slot);
    list.insert(std::lower_bound(list.begin(), list.end(), load), load);
  }

  bool join(Index before, Index load) {
    remove(load);
    gone_[load] = true;
    loads_[before].last = loads_[load].last;
    return true;
  }

  StepId steps_;
  std::vector<Load>& loads_;
  std::vector<bool> gone_;
  std::vector<std::vector<Index>> in_slot_;
};

}  // namespace

void stay_put(StepId steps, std::vector<Load>& loads) {
  PageId pages = 0;
  for (const Load& load : loads) pages = std::max(pages, load.page + 1);
  std::vector<std::vector<Index>> of_page(nth(pages));
  for (Index i = 0; i < loads.size(); ++i) of_page[nth(loads[i].page)].push_back(i);
  Places places(steps, loads);
  for (std::vector<Index>& list : of_page) {
    for (Index i = 0; i < list.size() && list.size() > 1;) {
      const Index next = i + 1 < list.size() ? i + 1 : 0;
      if (places.save(list[i], list[next])) {
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(next));
        if (next == 0) break;
      } else {
        ++i;
      }
    }
  }
  places.finish();
}

}  // namespace penstock::policy
