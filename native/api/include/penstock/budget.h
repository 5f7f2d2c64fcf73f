/* SPDX-License-Identifier: Apache-2.0
 *
 * One budget for all that a device holds: pagers, what torch allocates, and what others say that
 * they take.  Pages that are not in use leave for whoever needs more.  A part of penstock.h, which
 * includes it.
 *
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_BUDGET_H_
#define PENSTOCK_BUDGET_H_

#include "penstock/penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct penstock_budget penstock_budget;

PENSTOCK_API penstock_status penstock_budget_create(uint64_t limit, penstock_budget** budget);
/* After all that joined it have left. */
PENSTOCK_API void penstock_budget_destroy(penstock_budget* budget);
/* Beyond a lower limit nothing more is given until enough has been given back. */
PENSTOCK_API penstock_status penstock_budget_set_limit(penstock_budget* budget, uint64_t limit);
/* The pager's budget is a part of this one from here on, until it leaves or is destroyed. */
PENSTOCK_API penstock_status penstock_budget_join(penstock_budget* budget, penstock_pager* pager);
PENSTOCK_API penstock_status penstock_budget_leave(penstock_budget* budget, penstock_pager* pager);
/* Memory that neither a pager nor torch's allocator holds.  PENSTOCK_OUT_OF_MEMORY, and nothing is
 * taken, where all that is not in use has left and it still does not fit. */
PENSTOCK_API penstock_status penstock_budget_take(penstock_budget* budget, uint64_t bytes);
PENSTOCK_API penstock_status penstock_budget_put_back(penstock_budget* budget, uint64_t bytes);
/* Pages of the other pagers leave until so much is free; `but` may be NULL. */
PENSTOCK_API penstock_status penstock_budget_make_room(penstock_budget* budget, uint64_t bytes,
                                                       const penstock_pager* but);

typedef struct {
  uint64_t struct_size;
  uint64_t limit;
  uint64_t pagers;      /* bytes that they may hold */
  uint64_t others;      /* bytes that they do */
  uint64_t others_peak; /* and did at most since penstock_budget_new_peak() */
} penstock_budget_use;

PENSTOCK_API penstock_status penstock_budget_get_use(penstock_budget* budget,
                                                     penstock_budget_use* use);

PENSTOCK_API penstock_status penstock_budget_new_peak(penstock_budget* budget);

/* Called, with no lock held, when a use finds no room, and after it memory that `user` caches for
 * later counts no more.  NULL ends it. */
typedef void (*penstock_reclaim)(void* user);
PENSTOCK_API penstock_status penstock_budget_set_reclaim(penstock_budget* budget,
                                                         penstock_reclaim reclaim, void* user);

/* What torch's allocator holds on a device counts there from here on; NULL: nowhere.  That is
 * Penstock's allocator, and of PyTorch's own the expandable segments made since
 * penstock_torch_watch_segments(). */
PENSTOCK_API penstock_status penstock_torch_count_in(int32_t device, penstock_budget* budget);
/* 1 where the segments of PyTorch's own allocator are seen from here on, 0 where they cannot be. */
PENSTOCK_API int32_t penstock_torch_watch_segments(void);

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_BUDGET_H_ */
