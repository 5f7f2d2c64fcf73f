/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, streams and code that begin and end: the first context brings the engine, and what is
 * about to go is said before it goes.
 */
#include "preload/parameters.h"

static CUresult after_creation(CUresult result) {
  if (result == CUDA_SUCCESS) penstock_engine();
  return result;
}

CUresult penstock_on_cuDevicePrimaryCtxRetain(penstock_hook* self, CUcontext* context,
                                              CUdevice device) {
  return after_creation(PENSTOCK_REAL(cuDevicePrimaryCtxRetain)(context, device));
}

CUresult penstock_on_cuCtxCreateV2(penstock_hook* self, CUcontext* context, unsigned int flags,
                                   CUdevice device) {
  return after_creation(PENSTOCK_REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult penstock_on_cuCtxCreateV3(penstock_hook* self, CUcontext* context,
                                   CUexecAffinityParam* affinity, int count, unsigned int flags,
                                   CUdevice device) {
  return after_creation(PENSTOCK_REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult penstock_on_cuCtxCreateV4(penstock_hook* self, CUcontext* context,
                                   CUctxCreateParams* options, unsigned int flags,
                                   CUdevice device) {
  return after_creation(PENSTOCK_REAL(cuCtxCreate_v4)(context, options, flags, device));
}

static void context_ends(CUcontext context) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  penstock_forget_kernels();
  if (engine != NULL && context != NULL) engine->context_gone(context);
}

CUresult penstock_on_cuCtxDestroy(penstock_hook* self, CUcontext context) {
  context_ends(context);
  return PENSTOCK_REAL(cuCtxDestroy_v2)(context);
}

/* Its handle is to be had only by holding it once more. */
static CUcontext primary_context(CUdevice device) {
  const penstock_type_cuDevicePrimaryCtxRetain retain =
      (penstock_type_cuDevicePrimaryCtxRetain)penstock_hooks[PENSTOCK_HOOK_cuDevicePrimaryCtxRetain]
          .real;
  unsigned int flags = 0;
  int active = 0;
  CUcontext context = NULL;
  if (penstock_driver.cuDevicePrimaryCtxGetState == NULL ||
      penstock_driver.cuDevicePrimaryCtxRelease_v2 == NULL || retain == NULL ||
      penstock_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS ||
      !active || retain(&context, device) != CUDA_SUCCESS) {
    return NULL;
  }
  penstock_driver.cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

CUresult penstock_on_cuDevicePrimaryCtxReset(penstock_hook* self, CUdevice device) {
  context_ends(primary_context(device));
  return PENSTOCK_REAL(cuDevicePrimaryCtxReset_v2)(device);
}

CUresult penstock_on_cuStreamDestroy(penstock_hook* self, CUstream stream) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  if (engine != NULL) engine->stream_gone((uint64_t)(uintptr_t)stream);
  return PENSTOCK_REAL(cuStreamDestroy_v2)(stream);
}

CUresult penstock_on_cuModuleUnload(penstock_hook* self, CUmodule module) {
  penstock_forget_kernels();
  return PENSTOCK_REAL(cuModuleUnload)(module);
}

CUresult penstock_on_cuLibraryUnload(penstock_hook* self, CUlibrary library) {
  penstock_forget_kernels();
  return PENSTOCK_REAL(cuLibraryUnload)(library);
}
