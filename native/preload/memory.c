/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory given out and given back.  The engine is asked first; what it passes on is the
 * driver's, and where that has no more, the engine makes room once.
 */
#include "preload/work.h"

/* What the driver's own pitched allocations are a multiple of, on every GPU that is supported. */
enum { kPitch = 512 };

static int32_t ask_engine(penstock_interposer* engine, CUdeviceptr* address, size_t bytes,
                          CUstream stream, int ordered) {
  void* const context = penstock_current_context();
  /* What makes no sense is the driver's to refuse. */
  if (engine == NULL || address == NULL || bytes == 0 || context == NULL) return PENSTOCK_PASS;
  /* In the order of another device's stream. */
  if (penstock_context_of(stream) != context) return PENSTOCK_PASS;
  uint64_t found = 0;
  const int32_t result =
      engine->allocate(bytes, context, (uint64_t)(uintptr_t)stream, ordered, &found);
  if (result == CUDA_SUCCESS) {
    *address = found;
    penstock_count(&penstock_counts.engine_allocations, 1);
  }
  return result;
}

CUresult penstock_after_foreign(CUresult result, size_t bytes) {
  if (result == CUDA_SUCCESS) penstock_count(&penstock_counts.foreign_bytes, bytes);
  return result;
}

/* The rest of a hook's body: from the driver. */
#define PENSTOCK_FROM_DRIVER(bytes, real_call) \
  return penstock_after_foreign(PENSTOCK_WITH_ROOM(bytes, real_call), (bytes))

CUresult penstock_on_cuMemAlloc_v2(penstock_hook* self, CUdeviceptr* address, size_t bytes) {
  penstock_interposer* const engine = penstock_engine();
  const int32_t answer = ask_engine(engine, address, bytes, NULL, 0);
  if (answer != PENSTOCK_PASS) return answer;
  PENSTOCK_FROM_DRIVER(bytes, PENSTOCK_REAL(cuMemAlloc_v2)(address, bytes));
}

CUresult penstock_on_cuMemAllocPitch_v2(penstock_hook* self, CUdeviceptr* address, size_t* pitch,
                                        size_t width, size_t height, unsigned int element) {
  penstock_interposer* const engine = penstock_engine();
  const size_t wide = (width + kPitch - 1) / kPitch * kPitch;
  const bool sound = pitch != NULL && (element == 4 || element == 8 || element == 16) &&
                     wide >= width && (height == 0 || wide <= SIZE_MAX / height);
  if (sound) {
    const int32_t answer = ask_engine(engine, address, wide * height, NULL, 0);
    if (answer == CUDA_SUCCESS) *pitch = wide;
    if (answer != PENSTOCK_PASS) return answer;
  }
  PENSTOCK_FROM_DRIVER(wide * height,
                       PENSTOCK_REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element));
}

/* Within a capture the driver makes a node of it; that is not ours. */
CUresult penstock_on_cuMemAllocAsync(penstock_hook* self, CUdeviceptr* address, size_t bytes,
                                     CUstream stream) {
  const penstock_type_cuMemAllocAsync real = PENSTOCK_REAL(cuMemAllocAsync);
  penstock_interposer* const engine = penstock_engine();
  const CUstream where = penstock_stream(self, stream);
  if (penstock_is_capturing(where)) return real(address, bytes, stream);
  const int32_t answer = ask_engine(engine, address, bytes, where, 1);
  if (answer != PENSTOCK_PASS) return answer;
  PENSTOCK_FROM_DRIVER(bytes, real(address, bytes, stream));
}

/* A pool of the program's own may be shared, or belong to another device. */
static bool is_default_pool(CUmemoryPool pool) {
  CUdevice device = 0;
  CUmemoryPool found = NULL;
  return PENSTOCK_ASK(cuCtxGetDevice, &device) == CUDA_SUCCESS &&
         PENSTOCK_ASK(cuDeviceGetDefaultMemPool, &found, device) == CUDA_SUCCESS && found == pool;
}

CUresult penstock_on_cuMemAllocFromPoolAsync(penstock_hook* self, CUdeviceptr* address,
                                             size_t bytes, CUmemoryPool pool, CUstream stream) {
  const penstock_type_cuMemAllocFromPoolAsync real = PENSTOCK_REAL(cuMemAllocFromPoolAsync);
  penstock_interposer* const engine = penstock_engine();
  const CUstream where = penstock_stream(self, stream);
  if (penstock_is_capturing(where)) return real(address, bytes, pool, stream);
  if (engine != NULL && is_default_pool(pool)) {
    const int32_t answer = ask_engine(engine, address, bytes, where, 1);
    if (answer != PENSTOCK_PASS) return answer;
  }
  PENSTOCK_FROM_DRIVER(bytes, real(address, bytes, pool, stream));
}

CUresult penstock_on_cuMemCreate(penstock_hook* self, CUmemGenericAllocationHandle* handle,
                                 size_t bytes, const CUmemAllocationProp* properties,
                                 unsigned long long flags) {
  PENSTOCK_FROM_DRIVER(bytes, PENSTOCK_REAL(cuMemCreate)(handle, bytes, properties, flags));
}

static int32_t give_back(CUdeviceptr address, CUstream stream, int ordered) {
  penstock_interposer* const engine = penstock_engine();
  if (!penstock_find_block(address, NULL)) return PENSTOCK_PASS;
  return engine->release(address, penstock_context_of(stream), (uint64_t)(uintptr_t)stream,
                         ordered);
}

CUresult penstock_on_cuMemFree_v2(penstock_hook* self, CUdeviceptr address) {
  const int32_t answer = give_back(address, NULL, 0);
  return answer != PENSTOCK_PASS ? answer : PENSTOCK_REAL(cuMemFree_v2)(address);
}

CUresult penstock_on_cuMemFreeAsync(penstock_hook* self, CUdeviceptr address, CUstream stream) {
  const CUstream where = penstock_stream(self, stream);
  /* A graph's node, which can only free what another node of it allocates. */
  const bool captured = penstock_is_capturing(where);
  const int32_t answer = captured ? PENSTOCK_PASS : give_back(address, where, 1);
  return answer != PENSTOCK_PASS ? answer : PENSTOCK_REAL(cuMemFreeAsync)(address, stream);
}

CUresult penstock_on_cuMemGetInfo_v2(penstock_hook* self, size_t* free_bytes, size_t* total_bytes) {
  penstock_interposer* const engine = penstock_engine();
  void* const context = penstock_current_context();
  uint64_t left = 0;
  uint64_t total = 0;
  int32_t answer = PENSTOCK_PASS;
  if (engine != NULL && context != NULL) answer = engine->memory_info(context, &left, &total);
  if (answer == PENSTOCK_PASS) return PENSTOCK_REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
  if (answer == CUDA_SUCCESS) {
    if (free_bytes != NULL) *free_bytes = left;
    if (total_bytes != NULL) *total_bytes = total;
  }
  return answer;
}
