// SPDX-License-Identifier: Apache-2.0
#include "policy/baseline/eviction.hpp"

namespace penstock::policy::baseline {

void Eviction::used(PageId page, std::int64_t now, std::int64_t next) {
  const auto [known, arrives] = keys_.try_emplace(page, 0);
  if (!arrives && which_ == Evict::kFifo) return;
  if (!arrives) order_.erase({known->second, page});
  known->second = which_ == Evict::kBelady ? -next : now;
  order_.emplace(known->second, page);
}

void Eviction::left(PageId page) {
  const auto known = keys_.find(page);
  if (known == keys_.end()) return;
  order_.erase({known->second, page});
  keys_.erase(known);
}

PageId Eviction::victim(const std::function<bool(PageId)>& may) const {
  for (const auto& [key, page] : order_) {
    if (may(page)) return page;
  }
  return -1;
}

}  // namespace penstock::policy::baseline
