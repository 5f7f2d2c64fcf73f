/* SPDX-License-Identifier: Apache-2.0
 *
 * What lets something reach memory that no launch will show: executable graphs, other processes,
 * other hardware, textures, descriptors.  The blocks are pinned before the driver is asked, so that
 * they are there; those of a graph or a texture until that is destroyed.
 *
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_PRELOAD_PINS_H_
#define PENSTOCK_PRELOAD_PINS_H_

#include "preload/work.h"

/* What an object of the driver's touches, pinned. */
typedef struct penstock_hold penstock_hold;

/* A hold on all that `call` touches, each block once; ends the call's touches.  NULL: it cannot be
 * pinned, or there is no memory for it.  for_good: the blocks stay even when the object is gone. */
penstock_hold* penstock_hold_touches(penstock_call* call, int32_t reason, bool for_good);
penstock_hold* penstock_hold_texture(penstock_interposer* engine,
                                     const CUDA_RESOURCE_DESC* resource);
/* The driver was asked: if it made the object, whose handle is at `handle`, the hold takes the
 * place of what was held for it; else it goes.  kind: of the hook, which tells graphs from
 * textures. */
CUresult penstock_settle(penstock_hold* made, CUresult result, int kind, const void* handle);
/* Adds what is held for an object to the touches; nothing that is known of it may be all. */
void penstock_touch_held(penstock_call* call, int kind, uint64_t handle);
/* An object is destroyed: off the list before its handle can be another's, and back on it if the
 * driver refused. */
penstock_hold* penstock_take_held(int kind, uint64_t handle);
CUresult penstock_destroyed(penstock_hold* taken, CUresult result);

/* All blocks that reach into a range, which may begin before them, where a page does. */
CUresult penstock_pin_range(uint64_t address, uint64_t bytes);
/* A tensor map that does not show the address in plain keeps its block. */
CUresult penstock_after_encoding(CUresult result, const CUtensorMap* map, const void* address);

#endif /* PENSTOCK_PRELOAD_PINS_H_ */
