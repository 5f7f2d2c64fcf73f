// SPDX-License-Identifier: Apache-2.0
// Orders of uses that were learned before, so that a program that comes back to one of its phases
// (prefill after generation, evaluation after training) is known again after a few uses and not
// after two more rounds.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::policy::learning {

class KnownOrders {
 public:
  using Use = std::int32_t;

  // So many uses in a row tell an order.
  static constexpr std::size_t kTelling = 12;

  struct Known {
    std::vector<Use> order;
    std::size_t next = 0;      // of followed(): where in it the use stands that comes next
    std::int32_t reserve = 0;  // slots that it took beside those of its plan
  };

  // One round of an order, begun anywhere.  The least recently followed goes when there are many.
  void add(std::vector<Use> order) {
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
  // The order that the last uses (the oldest first) are a part of, begun where it was when it was
  // added: a plan for it puts pages where they were then.
  // Nothing if there are fewer than kTelling of them, or no order has them.
  std::optional<Known> followed(std::span<const Use> last) {
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
  // Whether an order is little but rounds of one a quarter as long, or less, that is known: a
  // prompt and a token for every word of the answer.  A plan for all of it would put a page
  // elsewhere in every round, which costs more than going from a plan of the rounds to another one
  // and back.
  [[nodiscard]] bool covers(std::span<const Use> order) const {
    return std::any_of(orders_.begin(), orders_.end(), [&](const Known& known) {
      if (4 * known.order.size() > order.size()) return false;
      return kOthers * (order.size() - going_round(known.order, order)) <= order.size();
    });
  }
  // Of the order that was added or followed last: kept for when it comes back.
  void remember(std::int32_t reserve) {
    if (orders_.empty()) return;
    Known& known = orders_.back();
    known.reserve = std::max(known.reserve, reserve);
  }
  [[nodiscard]] std::size_t size() const { return orders_.size(); }

 private:
  // Whether `last` stands in the cycle `order` with its end at `end`.
  static bool ends_at(const std::vector<Use>& order, std::size_t end, std::span<const Use> last) {
    for (std::size_t back = 0; back < last.size(); ++back) {
      const std::size_t at = (end + order.size() * last.size() - back) % order.size();
      if (order[at] != last[last.size() - 1 - back]) return false;
    }
    return true;
  }

  // How many uses of `uses` lie in stretches of kTelling or more that go round `order`.
  static std::size_t going_round(const std::vector<Use>& order, std::span<const Use> uses) {
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

  static constexpr std::size_t kMost = 8;
  // Of the uses of an order at most one in so many is in none of the rounds.
  static constexpr std::size_t kOthers = 8;
  std::vector<Known> orders_;  // the most recently followed last
};

}  // namespace penstock::policy::learning
