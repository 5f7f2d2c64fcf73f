/* SPDX-License-Identifier: Apache-2.0
 *
 * What torch's CUDAPluggableAllocator calls: one allocator a device, made on its first allocation.
 *
 * torch takes each entry point as a plain address, so neither its headers nor a compiler are needed
 * where Penstock is installed.  Only the allocating entry points throw, as torch wants it; those
 * that end a block's life must not, since torch calls them from destructors.  Any function from any
 * thread; penstock_torch_configure() before the first allocation.
 */
#ifndef PENSTOCK_TORCH_H_
#define PENSTOCK_TORCH_H_

#include <stddef.h>

#include "penstock/penstock.h"

struct CUstream_st; /* CUDA's own name: std::function's type is part of the interface */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint64_t struct_size;
  const penstock_device_options* device; /* its ordinal does not matter: torch names the device */
  const penstock_allocator_options* allocator;
  double budget_share; /* of the device's memory, if allocator->budget is 0; 0 = all of it */
} penstock_torch_options;

/* Options of every allocator that will be made; they are copied.  PENSTOCK_INVALID_ARGUMENT once
 * there is one. */
PENSTOCK_API penstock_status penstock_torch_configure(const penstock_torch_options* options);
/* That of a device; NULL, and no failure, where nothing has been allocated there yet. */
PENSTOCK_API penstock_status penstock_torch_allocator(int32_t device,
                                                      penstock_allocator** allocator);
/* penstock_allocator_record_history() for every allocator, those yet to be made included. */
PENSTOCK_API penstock_status penstock_torch_record_history(uint64_t capacity,
                                                           penstock_context_callback context,
                                                           void* user);
/* The type that running out of memory will have: 2 torch.OutOfMemoryError, by its own constructor;
 * 1 the same by that of its base; 0 RuntimeError. */
PENSTOCK_API int32_t penstock_torch_error_kind(void);
/* Called before each such error, outside all locks; NULL ends it. */
typedef void (*penstock_torch_observer)(int32_t device, uint64_t bytes, uint64_t device_total,
                                        uint64_t device_free);
PENSTOCK_API void penstock_torch_observe_out_of_memory(penstock_torch_observer observer);

PENSTOCK_API void* penstock_torch_alloc(size_t size, int device, struct CUstream_st* stream);
/* For torch.cuda.MemPool, which raises the error itself. */
PENSTOCK_API void* penstock_torch_alloc_or_null(size_t size, int device,
                                                struct CUstream_st* stream);
PENSTOCK_API void penstock_torch_free(void* address, size_t size, int device,
                                      struct CUstream_st* stream);
PENSTOCK_API void penstock_torch_init(int device_count);
PENSTOCK_API void penstock_torch_reset(void);
PENSTOCK_API void penstock_torch_memory_fraction(double fraction, int device);
PENSTOCK_API void* penstock_torch_base_alloc(void* address, size_t* size);
PENSTOCK_API void penstock_torch_record_stream(void* address, struct CUstream_st* stream);

#ifndef __cplusplus
/* C has no std::pair and no std::function to call these with, but their addresses. */
PENSTOCK_API void penstock_torch_begin_pool(void);
PENSTOCK_API void penstock_torch_end_pool(void);
PENSTOCK_API void penstock_torch_release_pool(void);
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PENSTOCK_TORCH_H_ */
