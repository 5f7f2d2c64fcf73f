/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/pins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { kBuckets = 256 };

typedef struct {
  penstock_touch touch;
  uint64_t pin;
} pinned;

struct penstock_hold {
  uint64_t handle;
  int kind;
  bool opaque;
  penstock_hold* next;
  uint32_t count;
  pinned touches[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static penstock_hold* holds[kBuckets];

static int by_address(const void* left, const void* right) {
  const uint64_t a = ((const penstock_touch*)left)->address;
  const uint64_t b = ((const penstock_touch*)right)->address;
  return a < b ? -1 : a > b;
}

/* A model's weight stands in many nodes: each address once, with the most that is said of it. */
static uint32_t merge(penstock_touch* touches, uint32_t count) {
  qsort(touches, count, sizeof(*touches), by_address);
  uint32_t kept = count != 0;
  for (uint32_t i = 1; i < count; ++i) {
    penstock_touch* const last = &touches[kept - 1];
    if (last->address != touches[i].address) {
      touches[kept++] = touches[i];
      continue;
    }
    const bool whole = last->bytes == 0 || touches[i].bytes == 0;
    if (whole) last->bytes = 0;
    if (!whole && touches[i].bytes > last->bytes) last->bytes = touches[i].bytes;
    last->access |= touches[i].access;
  }
  return kept;
}

static penstock_hold** place_of(int kind, uint64_t handle) {
  penstock_hold** at = &holds[(handle ^ handle >> 6) % kBuckets];
  while (*at != NULL && ((*at)->handle != handle || (*at)->kind != kind)) at = &(*at)->next;
  return at;
}

/* In the child of a fork nothing is held, and another thread of the parent's may have the lock. */
penstock_hold* penstock_take_held(int kind, uint64_t handle) {
  if (atomic_load(&penstock_loaded_engine) == NULL) return NULL;
  pthread_mutex_lock(&lock);
  penstock_hold** const at = place_of(kind, handle);
  penstock_hold* const taken = *at;
  if (taken != NULL) *at = taken->next;
  pthread_mutex_unlock(&lock);
  return taken;
}

static void keep(penstock_hold* made) {
  pthread_mutex_lock(&lock);
  penstock_hold** const at = place_of(made->kind, made->handle);
  made->next = *at; /* none, as a rule */
  *at = made;
  pthread_mutex_unlock(&lock);
}

static void let_go(penstock_hold* gone) {
  for (uint32_t i = 0; gone != NULL && i < gone->count; ++i) penstock_unpin(gone->touches[i].pin);
  free(gone);
}

void penstock_touch_held(penstock_call* call, int kind, uint64_t handle) {
  pthread_mutex_lock(&lock);
  const penstock_hold* const known = *place_of(kind, handle);
  call->work.opaque |= known == NULL || known->opaque;
  for (uint32_t i = 0; known != NULL && i < known->count; ++i) {
    const penstock_touch* const each = &known->touches[i].touch;
    penstock_touches_push(&call->touches, each->address, each->bytes, each->access);
  }
  pthread_mutex_unlock(&lock);
}

penstock_hold* penstock_hold_touches(penstock_call* call, int32_t reason, bool for_good) {
  const uint32_t count = merge(call->touches.list, call->touches.count);
  const bool refused = call->touches.lost || call->refusal != CUDA_SUCCESS;
  penstock_hold* made = refused ? NULL : malloc(sizeof(penstock_hold) + count * sizeof(pinned));
  if (made != NULL) *made = (penstock_hold){.opaque = call->work.opaque};
  for (uint32_t i = 0; made != NULL && i < count; ++i) {
    const penstock_touch touch = call->touches.list[i];
    made->touches[i] = (pinned){.touch = touch};
    ++made->count;
    CUresult result = penstock_pin(touch.address, reason, &made->touches[i].pin);
    if (result == CUDA_SUCCESS && for_good) {
      result = penstock_pin(touch.address, PENSTOCK_PIN_SHARED, NULL);
    }
    if (result == CUDA_SUCCESS) continue;
    let_go(made);
    made = NULL;
  }
  penstock_touches_free(&call->touches);
  return made;
}

penstock_hold* penstock_hold_texture(penstock_interposer* engine,
                                     const CUDA_RESOURCE_DESC* resource) {
  penstock_call call;
  penstock_work_on(&call, engine, PENSTOCK_WORK_KERNEL, NULL);
  if (resource != NULL && (resource->resType == CU_RESOURCE_TYPE_LINEAR ||
                           resource->resType == CU_RESOURCE_TYPE_PITCH2D)) {
    penstock_touch_block(&call, resource->res.linear.devPtr, PENSTOCK_ACCESS_READ);
  }
  return penstock_hold_touches(&call, PENSTOCK_PIN_TEXTURE, false);
}

CUresult penstock_settle(penstock_hold* made, CUresult result, int kind, const void* handle) {
  if (result != CUDA_SUCCESS) {
    let_go(made);
    return result;
  }
  made->kind = kind;
  memcpy(&made->handle, handle, sizeof(made->handle));
  penstock_hold* const old = penstock_take_held(kind, made->handle);
  keep(made);
  let_go(old);
  return result;
}

CUresult penstock_destroyed(penstock_hold* taken, CUresult result) {
  if (result == CUDA_SUCCESS) {
    let_go(taken);
  } else if (taken != NULL) {
    keep(taken);
  }
  return result;
}

CUresult penstock_pin_range(uint64_t address, uint64_t bytes) {
  enum { kStep = 512, kMostBetween = 64 << 10 }; /* blocks begin at; pages are as large at most */
  uint64_t between = 0;
  for (uint64_t at = address; at - address < bytes && between < kMostBetween;) {
    penstock_block block;
    if (penstock_find_block(at, &block)) {
      const CUresult result = penstock_pin(at, PENSTOCK_PIN_SHARED, NULL);
      if (result != CUDA_SUCCESS) return result;
      at = block.base + block.bytes;
      between = 0;
    } else {
      const uint64_t step = kStep - at % kStep;
      at += step;
      between += step;
    }
  }
  return CUDA_SUCCESS;
}

/* A tensor map is passed by value in a kernel's parameters, where its address is found if it stands
 * there in plain.  On Hopper it does; where it does not, the block must stay. */
CUresult penstock_after_encoding(CUresult result, const CUtensorMap* map, const void* address) {
  if (result != CUDA_SUCCESS || map == NULL) return result;
  for (int i = 0; i < 16; ++i) {
    if (map->opaque[i] == (uintptr_t)address) return result;
  }
  return penstock_pin((uintptr_t)address, PENSTOCK_PIN_DESCRIPTOR, NULL);
}
