// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/slots.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "policy/planning/arc_colouring.hpp"

namespace penstock::policy {
namespace {

using Index = std::size_t;

class Rounds {
 public:
  Rounds(const UseIndex& index, std::int32_t slots, std::vector<Load>& loads)
      : index_(index), slots_(slots), loads_(loads), apart_(loads.size(), false) {}

  // Sets the slots, or says that rounds do not suit these loads.
  bool assign() {
    std::int32_t own = 0;   // slots for spans that outlast a round
    std::int32_t step = 0;  // doubles, so that it settles in few passes
    while (own < slots_) {
      const bool settled = !set_apart(slots_ - own);
      const std::vector<Index> spans = where(true);
      if (2 * spans.size() > loads_.size()) return false;
      const std::optional<std::int32_t> used =
          ArcColouring(index_, loads_).colour_tightly(spans, slots_);
      if (!used) return false;
      if (settled && *used <= own) {
        for (const Index i : spans) loads_[i].slot = slots_ - 1 - loads_[i].slot;
        go_round(slots_ - *used);
        return true;
      }
      own = std::max(own + step, *used);
      step = std::max(1, 2 * step);
    }
    return false;
  }

 private:
  [[nodiscard]] std::vector<Index> where(bool apart) const {
    std::vector<Index> result;
    for (Index i = 0; i < apart_.size(); ++i) {
      if (apart_[i] == apart) result.push_back(i);
    }
    return result;
  }

  static Index rounds(Index loads, std::int32_t slots) {
    return (loads + nth(slots) - 1) / nth(slots);
  }

  // Sets apart the spans during which the ring comes round to the same slot, wherever the rounds
  // begin and end.  True when there were any.
  bool set_apart(std::int32_t slots) {
    const std::vector<Index> ring = where(false);
    if (ring.empty()) return false;
    std::vector<Index> started(nth(index_.steps()) + 1, 0);  // loads of the ring before each step
    for (const Index i : ring) ++started[nth(loads_[i].first) + 1];
    for (Index step = 1; step < started.size(); ++step) started[step] += started[step - 1];
    const Index distance = ring.size() / rounds(ring.size(), slots);
    bool any = false;
    for (Index n = 0; n < ring.size(); ++n) {
      const Load& load = loads_[ring[n]];
      Index next = started[nth(load.last) + 1];  // the first load that starts after it has ended
      if (load.last < load.first) next += ring.size();
      if (next - n > distance && distance < ring.size()) any = apart_[ring[n]] = true;
    }
    return any;
  }

  void go_round(std::int32_t slots) {
    const std::vector<Index> ring = where(false);
    if (ring.empty()) return;
    const Index count = rounds(ring.size(), slots);
    for (Index round = 0; round < count; ++round) {
      const Index begin = round * ring.size() / count;
      const Index end = (round + 1) * ring.size() / count;
      for (Index i = begin; i < end; ++i) loads_[ring[i]].slot = static_cast<SlotId>(i - begin);
    }
  }

  const UseIndex& index_;
  std::int32_t slots_;
  std::vector<Load>& loads_;
  std::vector<bool> apart_;
};

}  // namespace

void assign_slots(const UseIndex& index, std::int32_t slots, std::vector<Load>& loads) {
  if (loads.empty() || Rounds(index, slots, loads).assign()) return;
  const std::size_t before = loads.size();
  ArcColouring(index, loads).colour_all(slots);
  if (loads.size() == before) return;
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return std::pair(a.first, a.page) < std::pair(b.first, b.page);
  });
}

}  // namespace penstock::policy
