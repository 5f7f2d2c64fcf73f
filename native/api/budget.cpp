// SPDX-License-Identifier: Apache-2.0
// The C API for shared budgets: a thin coat over engine::SharedBudget.
#include "api/handles.hpp"

using namespace penstock;       // NOLINT(google-build-using-namespace)
using namespace penstock::api;  // NOLINT(google-build-using-namespace)

namespace {

template <class Function>
penstock_status with(penstock_budget* budget, Function&& function) {
  return guard([&]() -> Status {
    if (budget == nullptr) return {Code::kInvalidArgument, "the budget is null"};
    return function(budget->budget);
  });
}

}  // namespace

extern "C" {

penstock_status penstock_budget_create(uint64_t limit, penstock_budget** budget) {
  return guard([&]() -> Status {
    if (budget == nullptr) return {Code::kInvalidArgument, "budget is null"};
    *budget = new penstock_budget{engine::SharedBudget(limit)};
    return {};
  });
}

void penstock_budget_destroy(penstock_budget* budget) { delete budget; }

penstock_status penstock_budget_set_limit(penstock_budget* budget, uint64_t limit) {
  return with(budget, [&](engine::SharedBudget& shared) -> Status {
    shared.set_limit(limit);
    return {};
  });
}

penstock_status penstock_budget_join(penstock_budget* budget, penstock_pager* pager) {
  return with(budget, [&](engine::SharedBudget& shared) -> Status {
    if (pager == nullptr || pager->pager->shared() != nullptr) {
      return {Code::kInvalidArgument, "the pager is null, or of a budget already"};
    }
    return shared.join(*pager->pager);
  });
}

penstock_status penstock_budget_leave(penstock_budget* budget, penstock_pager* pager) {
  return with(budget, [&](engine::SharedBudget& shared) -> Status {
    if (pager != nullptr) shared.leave(*pager->pager);
    return {};
  });
}

penstock_status penstock_budget_hold(penstock_pager* pager, int32_t held) {
  return guard([&]() -> Status {
    if (pager == nullptr) return {Code::kInvalidArgument, "the pager is null"};
    pager->pager->hold(held != 0);
    return {};
  });
}

penstock_status penstock_budget_take(penstock_budget* budget, uint64_t bytes) {
  return with(budget, [&](engine::SharedBudget& shared) { return shared.take(bytes); });
}

penstock_status penstock_budget_put_back(penstock_budget* budget, uint64_t bytes) {
  return with(budget, [&](engine::SharedBudget& shared) { return shared.put_back(bytes); });
}

penstock_status penstock_budget_make_room(penstock_budget* budget, uint64_t bytes,
                                          const penstock_pager* but) {
  return with(budget, [&](engine::SharedBudget& shared) {
    return shared.make_room(bytes, but == nullptr ? nullptr : but->pager.get());
  });
}

penstock_status penstock_budget_set_reclaim(penstock_budget* budget, void (*reclaim)(void*),
                                            void* user) {
  return with(budget, [&](engine::SharedBudget& shared) -> Status {
    if (reclaim == nullptr) {
      shared.set_reclaim(nullptr);
    } else {
      shared.set_reclaim([reclaim, user] { reclaim(user); });
    }
    return {};
  });
}

penstock_status penstock_budget_get_use(penstock_budget* budget, penstock_budget_use* use) {
  return with(budget, [&](engine::SharedBudget& shared) {
    const engine::SharedBudget::Use now = shared.use();
    return write_struct(penstock_budget_use{0, now.limit, now.pagers, now.others, now.others_peak},
                        use);
  });
}

penstock_status penstock_budget_new_peak(penstock_budget* budget) {
  return with(budget, [&](engine::SharedBudget& shared) -> Status {
    shared.new_peak();
    return {};
  });
}

}  // extern "C"
