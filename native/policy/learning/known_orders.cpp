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
  // The same cycle, begun elsewhere, or here: what is known of it stays.
  Known added;
  std::erase_if(orders_, [&](const Known& known) {
    if (known.order.size() != order.size()) return false;
    for (std::size_t end = 0; end < order.size(); ++end) {
      if (known.order[end] != order.back() || !ends_at(known.order, end, order)) continue;
      added = known;
      return true;
    }
    return false;
  });
  if (orders_.size() == kMost) orders_.erase(orders_.begin());
  added.order = std::move(order);
  orders_.push_back(std::move(added));
}

std::optional<KnownOrders::Known> KnownOrders::followed(std::span<const Use> last) {
  if (last.size() < kTelling) return std::nullopt;
  last = last.last(kTelling);
  for (std::size_t i = orders_.size(); i-- > 0;) {
    const std::vector<Use>& order = orders_[i].order;
    for (std::size_t end = 0; end < order.size(); ++end) {
      if (order[end] != last.back() || !ends_at(order, end, last)) continue;
      orders_[i].next = (end + 1) % order.size();
      std::rotate(orders_.begin() + static_cast<std::ptrdiff_t>(i),
                  orders_.begin() + static_cast<std::ptrdiff_t>(i + 1), orders_.end());
      return orders_.back();
    }
  }
  return std::nullopt;
}

void KnownOrders::remember(std::int32_t reserve) {
  if (orders_.empty()) return;
  Known& known = orders_.back();
  known.reserve = std::max(known.reserve, reserve);
}

}  // namespace penstock::policy::learning
