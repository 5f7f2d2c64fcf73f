/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 without a GPU: every entry point of the proxy's two lists counts its calls, copies
 * copy, fills fill, kernels are host functions, and all happens at once.  Device memory is host
 * memory.  It also has functions, and forms of functions, that the proxy does not know.
 */
#define _GNU_SOURCE
#include "fake_driver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fake_memory.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  const char* exported;
  const char* base;
  int since, stream;
  void (*function)(void);
  _Atomic(uint64_t) calls;
  _Atomic(int) result, failures;
} entry;

enum { NO_STREAM, LEGACY, PER_THREAD };
enum {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  INDEX_##exported,
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
#define PENSTOCK_USE(exported, base, since, parameters) INDEX_##exported,
#include "preload/uses.def"
#undef PENSTOCK_USE
  ENTRIES
};
static entry entries[];

/* Of fake_fail_at(). */
static uint64_t failing_call;
static int fails_for_good;
static _Atomic(_Atomic(uint64_t)*) calls_seen;

static int note(int index) {
  atomic_fetch_add(&entries[index].calls, 1);
  _Atomic(uint64_t)* const seen = atomic_load(&calls_seen);
  if (seen != NULL) {
    const uint64_t now = atomic_fetch_add(seen, 1) + 1;
    if (now == failing_call || (fails_for_good && now > failing_call)) return 999;
  }
  if (atomic_load(&entries[index].failures) <= 0) return 0;
  atomic_fetch_sub(&entries[index].failures, 1);
  return entries[index].result;
}

/* A hook without a body of its own here does nothing, with success. */
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  CUresult fake_##hook parameters __attribute__((weak));                                \
  EXPORT CUresult exported parameters;                                                  \
  CUresult exported parameters {                                                        \
    const CUresult failure = note(INDEX_##exported);                                    \
    if (failure != 0) return failure;                                                   \
    return &fake_##hook != NULL ? fake_##hook arguments : CUDA_SUCCESS;                 \
  }
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
#define PENSTOCK_USE(exported, base, since, parameters) EXPORT CUresult exported parameters;
#include "preload/uses.def"
#undef PENSTOCK_USE

static entry entries[ENTRIES] = {
#define PENSTOCK_HOOK(exported_name, hook, base_name, since_version, which, kind, parameters, \
                      arguments)                                                              \
  [INDEX_##exported_name] = {.exported = #exported_name,                                      \
                             .base = base_name,                                               \
                             .since = since_version,                                          \
                             .stream = which,                                                 \
                             .function = (void (*)(void))exported_name},
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
#define PENSTOCK_USE(exported_name, base_name, since_version, parameters) \
  [INDEX_##exported_name] = {.exported = #exported_name,                  \
                             .base = base_name,                           \
                             .since = since_version,                      \
                             .function = (void (*)(void))exported_name},
#include "preload/uses.def"
#undef PENSTOCK_USE
};

/* ---- Forms and functions that the proxy does not know --------------------------------------- */

static CUresult mem_alloc_v1(unsigned int* address, unsigned int bytes) {
  *address = 0;
  (void)bytes;
  return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult launch_kernel_v9(void) { return 9; }
EXPORT CUresult cuFromTheFuture_v3(int value) { return value + 1; }
EXPORT CUresult cuInit(unsigned int flags) { return flags == 0 ? 0 : 1; }
EXPORT CUresult cuCtxSynchronize(void) { return 0; }
EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  (void)device;
  *value = attribute == 75 ? 9 : 0; /* of compute capability 9.0 */
  return 0;
}
CUresult fake_cuModuleLoadData(CUmodule* module, const void* image) {
  *module = NULL;
  return strstr(image, ".target sm_80") != NULL ? 0 : 218;
}

static struct {
  const char* base;
  int since;
  void (*function)(void);
} others[] = {
    {"cuMemAlloc", 2000, (void (*)(void))mem_alloc_v1},
    {"cuLaunchKernel", 99000, (void (*)(void))launch_kernel_v9},
    {"cuFromTheFuture", 13000, (void (*)(void))cuFromTheFuture_v3},
    {"cuInit", 2000, (void (*)(void))cuInit},
};

CUresult fake_cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  int best = -1;
  *pfn = NULL;
  for (int i = 0; i < ENTRIES; ++i) {
    const int other =
        entries[i].stream != NO_STREAM && (entries[i].stream == PER_THREAD) != (flags == 2);
    if (other || strcmp(entries[i].base, symbol) != 0) continue;
    if (entries[i].since > version || entries[i].since <= best) continue;
    best = entries[i].since;
    *pfn = (void*)entries[i].function;
  }
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); ++i) {
    if (strcmp(others[i].base, symbol) != 0 || others[i].since > version) continue;
    if (others[i].since <= best) continue;
    best = others[i].since;
    *pfn = (void*)others[i].function;
  }
  if (status != NULL) *status = best >= 0 ? 0 : 1;
  return best >= 0 ? CUDA_SUCCESS : 500;
}

CUresult fake_cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  return fake_cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}

/* ---- For the tests -------------------------------------------------------------------------- */

EXPORT uint64_t fake_calls(const char* exported) {
  for (int i = 0; i < ENTRIES; ++i) {
    if (strcmp(entries[i].exported, exported) == 0) return entries[i].calls;
  }
  return UINT64_MAX;
}

EXPORT void fake_fail(const char* exported, CUresult result, int times) {
  for (int i = 0; i < ENTRIES; ++i) {
    if (strcmp(entries[i].exported, exported) != 0) continue;
    entries[i].result = result;
    entries[i].failures = times;
  }
}

EXPORT void fake_fail_at(uint64_t nth, int for_good, _Atomic(uint64_t)* seen) {
  failing_call = nth;
  fails_for_good = for_good;
  atomic_store(&calls_seen, seen);
}

/* ---- Contexts, streams, memory -------------------------------------------------------------- */

static int a_context;
static _Thread_local CUcontext current;

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  (void)device;
  *context = (CUcontext)&a_context;
  return 0;
}
CUresult fake_cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  (void)flags;
  current = (CUcontext)&a_context;
  return fake_cuDevicePrimaryCtxRetain(context, device);
}
/* The other forms take the same. */
extern __typeof__(fake_cuCtxCreate_v2) fake_cuCtxCreate
    __attribute__((alias("fake_cuCtxCreate_v2")));
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  *context = (CUcontext)green;
  return note(INDEX_cuCtxFromGreenCtx);
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  note(INDEX_cuCtxGetCurrent);
  *context = current;
  return 0;
}
/* Of all streams but one that the tests set apart. */
static CUstream stream_elsewhere;
EXPORT void fake_stream_elsewhere(CUstream stream) { stream_elsewhere = stream; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = stream == stream_elsewhere ? (CUcontext)&stream_elsewhere : (CUcontext)&a_context;
  return note(INDEX_cuStreamGetCtx);
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return 0;
}
static int default_pool;
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  (void)device;
  *pool = (CUmemoryPool)&default_pool;
  return 0;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  (void)device;
  return note(INDEX_cuDevicePrimaryCtxRelease_v2);
}

CUresult fake_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  *address = (CUdeviceptr)(uintptr_t)calloc(1, bytes);
  return *address != 0 ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult fake_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  (void)stream;
  return fake_cuMemAlloc_v2(address, bytes);
}
CUresult fake_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  (void)pool;
  return fake_cuMemAllocAsync(address, bytes, stream);
}
CUresult fake_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                 unsigned int element) {
  (void)element;
  *pitch = (width + 511) / 512 * 512;
  return fake_cuMemAlloc_v2(address, *pitch * height);
}
CUresult fake_cuMemFree_v2(CUdeviceptr address) {
  free((void*)(uintptr_t)address);
  return 0;
}
CUresult fake_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  (void)stream;
  return fake_cuMemFree_v2(address);
}
CUresult fake_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = 111;
  *total_bytes = 222;
  return 0;
}
CUresult fake_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  *base = address;
  *bytes = 1;
  return 0;
}
static char variable[512];
CUresult fake_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                   const char* name) {
  (void)module, (void)name;
  *address = (CUdeviceptr)(uintptr_t)variable;
  *bytes = sizeof(variable);
  return 0;
}
/* Other memory of the host's is not known to it. */
CUresult fake_cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                    CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
      address - (uintptr_t)variable < sizeof(variable)) {
    *(unsigned int*)data = CU_MEMORYTYPE_DEVICE;
    return 0;
  }
  return attribute == 0 ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* An encoded map shows its address in plain, as on Hopper, unless it has rank 5. */
CUresult fake_cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                     void* address, const cuuint64_t* dimensions,
                                     const cuuint64_t* strides, const cuuint32_t* box,
                                     const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
  (void)type, (void)dimensions, (void)strides, (void)box, (void)steps, (void)interleave;
  (void)swizzle, (void)promotion, (void)fill;
  memset(map, 0, sizeof(*map));
  map->opaque[1] = rank == 5 ? ~(uintptr_t)address : (uintptr_t)address;
  return 0;
}
CUresult fake_cuTexObjectCreate(CUtexObject* texture, const CUDA_RESOURCE_DESC* resource,
                                const CUDA_TEXTURE_DESC* description,
                                const CUDA_RESOURCE_VIEW_DESC* view) {
  (void)resource, (void)description, (void)view;
  *texture = 1;
  return 0;
}
CUresult fake_cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                   unsigned int flags) {
  (void)stream, (void)flags;
  if (address != 0) memcpy((void*)(uintptr_t)address, &value, sizeof(value));
  return 0;
}
/* The other form takes the same. */
extern __typeof__(fake_cuStreamWriteValue32) fake_cuStreamWriteValue32_v2
    __attribute__((alias("fake_cuStreamWriteValue32")));
CUresult fake_cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                   unsigned int flags) {
  (void)stream, (void)flags;
  if (address != 0) memcpy((void*)(uintptr_t)address, &value, sizeof(value));
  return 0;
}
/* The other form takes the same. */
extern __typeof__(fake_cuStreamWriteValue64) fake_cuStreamWriteValue64_v2
    __attribute__((alias("fake_cuStreamWriteValue64")));
