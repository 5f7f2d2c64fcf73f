// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/known_orders.hpp"

#include <algorithm>

namespace penstock::policy::learning {
namespace {

using Use = KnownOrders::Use;

// Whether `last` stands in the cycle `order` with its end at `end`.
bool ends_at(const std::vector<Use>& order, std::size_t end, std::span<const Use> last) {
  for (std::size_t back = 0; back < last.size(); ++back) {
    const std::size_t at = (end + order.size() * last.size() - back) % order.size();
    if (order[at] != last[last.size() - 1 - back]) return false;
  }
  return true;
}

}  // namespace

void KnownOrders::add(std::vector<Use> order) {
  if (order.empty()) return;
  // The same cycle, begun elsewhere.
  std::erase_if(orders_, [&](const std::vector<Use>& known) {
    if (known.size() != order.size()) return false;
    for (std::size_t end = 0; end < known.size(); ++end) {
      if (known[end] == order.back() && ends_at(known, end, order)) return true;
    }
    return false;
  });
  if (orders_.size() == kMost) orders_.erase(orders_.begin());
  orders_.push_back(std::move(order));
}

std::optional<std::vector<Use>> KnownOrders::followed(std::span<const Use> last) {
  if (last.size() < kTelling) return std::nullopt;
  last = last.last(kTelling);
  for (std::size_t i = orders_.size(); i-- > 0;) {
    std::vector<Use>& order = orders_[i];
    for (std::size_t end = 0; end < order.size(); ++end) {
      if (order[end] != last.back() || !ends_at(order, end, last)) continue;
      std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(end + 1), order.end());
      std::rotate(orders_.begin() + static_cast<std::ptrdiff_t>(i),
                  orders_.begin() + static_cast<std::ptrdiff_t>(i + 1), orders_.end());
      return orders_.back();
    }
  }
  return std::nullopt;
}

}  // namespace penstock::policy::learning
