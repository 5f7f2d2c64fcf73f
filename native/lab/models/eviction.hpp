// SPDX-License-Identifier: Apache-2.0
// Which page leaves when one is brought in on demand: the classics that Penstock is compared with.
// Pure.  O(log n) a call; victim() looks past pages that may not leave one by one.
//
//   least recently used; first in, first out; and the page whose next use is farthest (Belady, "A
//   study of replacement algorithms for a virtual-storage computer", 1966), which needs to know the
//   future and, with pages of one size, misses least.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <unordered_map>
#include <utility>

#include "policy/types.hpp"

namespace penstock::policy::baseline {

enum class Evict { kLru = 1, kFifo = 2, kBelady = 3 };  // as PENSTOCK_SIMULATE_*

class Eviction {
 public:
  explicit Eviction(Evict which) : which_(which) {}

  // The page is used at time `now`, which rises; next: the time of its next use, for kBelady.  It
  // is resident from its first use until left().
  void used(PageId page, std::int64_t now, std::int64_t next) {
    const auto [known, arrives] = keys_.try_emplace(page, 0);
    if (!arrives && which_ == Evict::kFifo) return;
    if (!arrives) order_.erase({known->second, page});
    known->second = which_ == Evict::kBelady ? -next : now;
    order_.emplace(known->second, page);
  }
  void left(PageId page) {
    const auto known = keys_.find(page);
    if (known == keys_.end()) return;
    order_.erase({known->second, page});
    keys_.erase(known);
  }
  [[nodiscard]] std::size_t resident() const { return keys_.size(); }
  // The page to leave, of those that may; -1: none.
  [[nodiscard]] PageId victim(const std::function<bool(PageId)>& may) const {
    for (const auto& [key, page] : order_) {
      if (may(page)) return page;
    }
    return -1;
  }

 private:
  Evict which_;
  std::set<std::pair<std::int64_t, PageId>> order_;  // the first goes first
  std::unordered_map<PageId, std::int64_t> keys_;
};

}  // namespace penstock::policy::baseline
