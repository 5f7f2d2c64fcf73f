// SPDX-License-Identifier: Apache-2.0
// The C API for shared budgets: a thin coat over engine::SharedBudget.
#include "api/handles.hpp"

penstock_status penstock_budget_create(uint64_t limit, penstock_budget** budget) {
  return guard([&]() -> Status {
    if (budget == nullptr) return missing(penstock_budget::kName);
    *budget = new penstock_budget{engine::SharedBudget(limit)};
    return {};
  });
}

void penstock_budget_destroy(penstock_budget* budget) { delete budget; }

penstock_status penstock_budget_join(penstock_budget* budget, penstock_pager* pager) {
  return with(budget, [&](auto& shared) -> Status {
    if (pager == nullptr || pager->pager->shared() != nullptr) {
      return invalid("the pager is null, or of a budget already");
    }
    return shared.join(*pager->pager);
  });
}

penstock_status penstock_budget_leave(penstock_budget* budget, penstock_pager* pager) {
  return with(budget, [&](auto& shared) {
    if (pager != nullptr) shared.leave(*pager->pager);
  });
}

PENSTOCK_FORWARD(penstock_budget_hold, penstock_pager, it.hold(held != 0), int32_t held)
PENSTOCK_FORWARD(penstock_budget_set_limit, penstock_budget, it.set_limit(limit), uint64_t limit)
PENSTOCK_FORWARD(penstock_budget_take, penstock_budget, it.take(bytes), uint64_t bytes)
PENSTOCK_FORWARD(penstock_budget_put_back, penstock_budget, it.put_back(bytes), uint64_t bytes)
PENSTOCK_FORWARD(penstock_budget_make_room, penstock_budget,
                 it.make_room(bytes, but == nullptr ? nullptr : but->pager.get()), uint64_t bytes,
                 const penstock_pager* but)
PENSTOCK_FORWARD(penstock_budget_new_peak, penstock_budget, it.new_peak())

penstock_status penstock_budget_set_reclaim(penstock_budget* budget, void (*reclaim)(void*),
                                            void* user) {
  return with(budget, [&](auto& shared) {
    if (reclaim == nullptr) {
      shared.set_reclaim(nullptr);
    } else {
      shared.set_reclaim([reclaim, user] { reclaim(user); });
    }
  });
}

penstock_status penstock_budget_get_use(penstock_budget* budget, penstock_budget_use* use) {
  return with(budget, [&](auto& shared) {
    const engine::SharedBudget::Use now = shared.use();
    return write_struct(penstock_budget_use{0, now.limit, now.pagers, now.others, now.others_peak},
                        use);
  });
}
