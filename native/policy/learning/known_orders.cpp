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

// How many uses of `uses` lie in stretches of kTelling or more that go round `order`.
std::size_t going_round(const std::vector<Use>& order, std::span<const Use> uses) {
  constexpr std::size_t kTelling = KnownOrders::kTelling;
  std::size_t found = 0;
  for (std::size_t i = 0; i + kTelling <= uses.size();) {
    const auto last = uses.subspan(i, kTelling);
    std::size_t end = 0;
    while (end < order.size() && !(order[end] == last.back() && ends_at(order, end, last))) ++end;
    if (end == order.size()) {
      ++i;
      continue;
    }
    std::size_t length = kTelling;
    while (i + length < uses.size() && uses[i + length] == order[++end % order.size()]) ++length;
    found += length;
    i += length;
  }
  return found;
}

}  // namespace

bool KnownOrders::covers(std::span<const Use> order) const {
  return std::any_of(orders_.begin(), orders_.end(), [&](const Known& known) {
    if (4 * known.order.size() > order.size()) return false;
    return kOthers * (order.size() - going_round(known.order, order)) <= order.size();
  });
}

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
