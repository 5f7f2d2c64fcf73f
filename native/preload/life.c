/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, streams and code that begin and end: the first context brings the engine, and what is
 * about to go is said before it goes.
 */
#include "preload/life.h"

#include "preload/parameters.h"

CUresult penstock_after_context(CUresult result) {
  if (result == CUDA_SUCCESS) penstock_engine();
  return result;
}

void penstock_context_ends(CUcontext context) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  penstock_forget_kernels();
  if (engine != NULL && context != NULL) engine->context_gone(context);
}

/* Its handle is to be had only by holding it once more. */
static CUcontext primary_context(CUdevice device) {
  const penstock_type_cuDevicePrimaryCtxRetain retain =
      (penstock_type_cuDevicePrimaryCtxRetain)penstock_hooks[PENSTOCK_HOOK_cuDevicePrimaryCtxRetain]
          .real;
  unsigned int flags = 0;
  int active = 0;
  CUcontext context = NULL;
  if (penstock_driver.cuDevicePrimaryCtxRelease_v2 == NULL || retain == NULL ||
      PENSTOCK_ASK(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS ||
      !active || retain(&context, device) != CUDA_SUCCESS) {
    return NULL;
  }
  penstock_driver.cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

void penstock_primary_ends(CUdevice device) { penstock_context_ends(primary_context(device)); }

void penstock_green_context_ends(CUgreenCtx green) {
  CUcontext context = NULL;
  if (PENSTOCK_ASK(cuCtxFromGreenCtx, &context, green) != CUDA_SUCCESS) context = NULL;
  penstock_context_ends(context);
}

void penstock_stream_ends(CUstream stream) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  if (engine != NULL) engine->stream_gone((uint64_t)(uintptr_t)stream);
}
