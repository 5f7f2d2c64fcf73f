// SPDX-License-Identifier: Apache-2.0
// Orders of uses that were learned before, so that a program that comes back to one of its phases
// (prefill after generation, evaluation after training) is known again after a few uses and not
// after two more rounds.  Pure.
#pragma once

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
  void add(std::vector<Use> order);
  // The order that the last uses (the oldest first) are a part of, begun where it was when it was
  // added: a plan for it puts pages where they were then.
  // Nothing if there are fewer than kTelling of them, or no order has them.
  std::optional<Known> followed(std::span<const Use> last);
  // Whether an order is little but rounds of one a quarter as long, or less, that is known: a
  // prompt and a token for every word of the answer.  A plan for all of it would put a page
  // elsewhere in every round, which costs more than going from a plan of the rounds to another one
  // and back.
  [[nodiscard]] bool covers(std::span<const Use> order) const;
  // Of the order that was added or followed last: kept for when it comes back.
  void remember(std::int32_t reserve);
  [[nodiscard]] std::size_t size() const { return orders_.size(); }

 private:
  static constexpr std::size_t kMost = 8;
  // Of the uses of an order at most one in so many is in none of the rounds.
  static constexpr std::size_t kOthers = 8;
  std::vector<Known> orders_;  // the most recently followed last
};

}  // namespace penstock::policy::learning
