/* SPDX-License-Identifier: Apache-2.0
 *
 * What lets something reach memory that no launch will show: other processes, other hardware,
 * textures, descriptors.  The block is pinned before the driver is asked, so that it is there.
 */
#include <pthread.h>
#include <stdlib.h>

#include "preload/life.h"

static CUdeviceptr texture_memory(const CUDA_RESOURCE_DESC* resource) {
  const bool linear = resource != NULL && (resource->resType == CU_RESOURCE_TYPE_LINEAR ||
                                           resource->resType == CU_RESOURCE_TYPE_PITCH2D);
  return linear ? resource->res.linear.devPtr : 0;
}

/* The textures that hold a block. */
typedef struct bound {
  CUtexObject texture;
  uint64_t token;
  struct bound* next;
} bound;

static pthread_mutex_t bound_lock = PTHREAD_MUTEX_INITIALIZER;
static bound* bounds;

static bound* take_bound(CUtexObject texture) {
  pthread_mutex_lock(&bound_lock);
  bound** at = &bounds;
  while (*at != NULL && (*at)->texture != texture) at = &(*at)->next;
  bound* const taken = *at;
  if (taken != NULL) *at = taken->next;
  pthread_mutex_unlock(&bound_lock);
  return taken;
}

static void keep_bound(bound* made) {
  pthread_mutex_lock(&bound_lock);
  made->next = bounds;
  bounds = made;
  pthread_mutex_unlock(&bound_lock);
}

static void let_go(bound* taken) {
  if (taken != NULL) penstock_unpin(taken->token);
  free(taken);
}

CUresult penstock_on_cuTexObjectCreate(penstock_hook* self, CUtexObject* texture,
                                       const CUDA_RESOURCE_DESC* resource,
                                       const CUDA_TEXTURE_DESC* description,
                                       const CUDA_RESOURCE_VIEW_DESC* view) {
  uint64_t token = 0;
  CUresult result = penstock_pin(texture_memory(resource), PENSTOCK_PIN_TEXTURE, &token);
  if (result != CUDA_SUCCESS) return result;
  bound* const made = token != 0 ? malloc(sizeof(bound)) : NULL;
  if (token != 0 && made == NULL) {
    penstock_unpin(token);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  result = PENSTOCK_REAL(cuTexObjectCreate)(texture, resource, description, view);
  if (made == NULL) return result;
  *made = (bound){.texture = result == CUDA_SUCCESS ? *texture : 0, .token = token};
  if (result == CUDA_SUCCESS) {
    keep_bound(made);
  } else {
    let_go(made);
  }
  return result;
}

/* Off the list before its number can be another's. */
CUresult penstock_on_cuTexObjectDestroy(penstock_hook* self, CUtexObject texture) {
  bound* const taken = take_bound(texture);
  const CUresult result = PENSTOCK_REAL(cuTexObjectDestroy)(texture);
  if (result == CUDA_SUCCESS) {
    let_go(taken);
  } else if (taken != NULL) {
    keep_bound(taken);
  }
  return result;
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
