/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory given out and back, questions about addresses, what pins a block, what ends.
 */
#include <dlfcn.h>

#include "check.h"

static uint64_t driver_calls(const char* exported) {
  return ((fake_calls_function)driver_symbol("fake_calls"))(exported);
}

static void fail(const char* exported, CUresult result, int times) {
  ((fake_fail_function)driver_symbol("fake_fail"))(exported, result, times);
}
static void fail_once(const char* exported, CUresult result) { fail(exported, result, 1); }
static void fail_twins(const char* exported, CUresult result, int times) {
  static const char* const forms[] = {"", "_ptsz", "_ptds"};
  for (int i = 0; i < 3; ++i) {
    char name[64];
    snprintf(name, sizeof(name), "%s%s", exported, forms[i]);
    fail(name, result, times);
  }
}

static void ordered(session* with) {
  driver_api* const cu = &with->cu;
  CUdeviceptr a = 0;
  CUmemoryPool pool = NULL;
  CHECK(cu->cuMemAllocAsync(&a, 4096, with->stream) == 0);
  const double_event* event = last_event(with, DOUBLE_ALLOCATE);
  CHECK(event->kind == 1 && event->stream == (uintptr_t)with->stream && event->address == a);
  CHECK(cu->cuMemFreeAsync(a, with->stream) == 0);
  event = last_event(with, DOUBLE_RELEASE);
  CHECK(event->kind == 1 && event->stream == (uintptr_t)with->stream && event->address == a);
  CHECK(DRIVER(cuDeviceGetDefaultMemPool)(&pool, 0) == 0);
  with->engine->clear();
  CHECK(cu->cuMemAllocFromPoolAsync(&a, 4096, pool, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 1);
  CHECK(cu->cuMemAllocFromPoolAsync(&a, 4096, (CUmemoryPool)with, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 1); /* a pool of the program's own */
  CHECK(cu->cuMemFreeAsync(a, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_RELEASE) == 0);
  /* In another device's stream: memory of that device, and no mark of the current one's. */
  const CUdeviceptr block = new_block(with, 64);
  with->engine->clear();
  ((fake_stream_elsewhere_function)driver_symbol("fake_stream_elsewhere"))(with->stream);
  CHECK(cu->cuMemAllocAsync(&a, 4096, with->stream) == 0);
  CHECK(cu->cuMemAllocFromPoolAsync(&a, 4096, pool, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 0);
  CHECK(cu->cuMemFreeAsync(block, with->stream) == 0);
  void* const there = last_event(with, DOUBLE_RELEASE)->context;
  ((fake_stream_elsewhere_function)driver_symbol("fake_stream_elsewhere"))(NULL);
  CHECK(cu->cuMemFree_v2(new_block(with, 64)) == 0);
  CHECK(there != NULL && there != last_event(with, DOUBLE_RELEASE)->context);
}

static void within_a_capture(session* with) {
  CUdeviceptr a = 0;
  CUgraph graph = NULL;
  with->engine->clear();
  CHECK(with->cu.cuStreamBeginCapture_v2(with->stream, 0) == 0);
  CHECK(with->cu.cuMemAllocAsync(&a, 64, with->stream) == 0);
  /* Of memory from elsewhere there is no node that frees it. */
  fail_twins("cuMemFreeAsync", CUDA_ERROR_INVALID_VALUE, 1);
  const CUdeviceptr block = new_block(with, 64);
  CHECK(with->cu.cuMemFreeAsync(block, with->stream) == CUDA_ERROR_INVALID_VALUE);
  fail_twins("cuMemFreeAsync", 0, 0);
  CHECK(with->cu.cuStreamEndCapture(with->stream, &graph) == 0);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 1 && count_events(with, DOUBLE_RELEASE) == 0);
  CHECK(with->cu.cuMemAllocAsync(&a, 64, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 2);
}

/* What the driver takes for itself: nobody knows how much, so that room is made until it is enough.
 * With paging off a launch goes straight to the driver, and is announced once room was made. */
#define CHECK_ROOM(name, times, ...)                       \
  do {                                                     \
    fail_twins(#name, CUDA_ERROR_OUT_OF_MEMORY, times);    \
    with->engine->clear();                                 \
    CHECK(with->cu.name(__VA_ARGS__) == 0);                \
    CHECK(count_events(with, DOUBLE_ROOM) == (times));     \
    CHECK(last_event(with, DOUBLE_ROOM)->bytes == 0);      \
    CHECK(last_event(with, DOUBLE_ROOM)->context != NULL); \
    fail_twins(#name, 0, 0);                               \
  } while (0)
static void taken_by_the_driver(session* with) {
  CUcontext context = NULL;
  CUmodule module = NULL;
  CUfunction function = NULL;
  CUstream stream = NULL;
  CUevent event = NULL;
  CUarray array = NULL;
  CUmipmappedArray mipmapped = NULL;
  CUmemoryPool pool = NULL;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUdeviceptr managed = 0;
  CHECK_ROOM(cuModuleLoadData, 3, &module, ".target sm_80");
  CHECK_ROOM(cuModuleGetFunction, 1, &function, NULL, "nothing");
  CHECK_ROOM(cuLibraryGetModule, 1, &module, NULL);
  CHECK_ROOM(cuStreamCreate, 1, &stream, 0);
  CHECK_ROOM(cuEventCreate, 1, &event, 0);
  CHECK_ROOM(cuArray3DCreate_v2, 2, &array, NULL);
  CHECK_ROOM(cuMipmappedArrayCreate, 1, &mipmapped, NULL, 1);
  CHECK_ROOM(cuMemPoolCreate, 1, &pool, NULL);
  CHECK_ROOM(cuMemAllocManaged, 1, &managed, 64, 0);
  CHECK_ROOM(cuCtxCreate_v2, 1, &context, 0, 0);
  const CUdeviceptr block = new_block(with, 64);
  for (int active = 0; active < 2; ++active) {
    with->engine->activate(active);
    CHECK_ROOM(cuLaunchKernel, 2, function, 1, 1, 1, 1, 1, 1, 0, with->stream, NULL, NULL);
    CHECK(count_events(with, DOUBLE_BEGIN) == (active ? 3 : 0));
    CHECK(count_events(with, DOUBLE_END) == count_events(with, DOUBLE_BEGIN));
    CHECK_ROOM(cuMemsetD8_v2, 1, block, 5, 64);
    CHECK(count_events(with, DOUBLE_END) == 2);
    CHECK(with->cu.cuStreamBeginCapture_v2(with->stream, 0) == 0);
    CHECK(with->cu.cuStreamEndCapture(with->stream, &graph) == 0);
    CHECK_ROOM(cuGraphInstantiateWithFlags, 1, &exec, graph, 0);
    CHECK_ROOM(cuGraphUpload, 1, exec, with->stream);
    CHECK_ROOM(cuGraphLaunch, 1, exec, with->stream);
  }
  with->engine->activate(0);
  /* The engine's own refusal is another matter: less memory would not help. */
  with->engine->activate(1);
  with->engine->clear();
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(with->cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, with->stream, NULL, NULL) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(count_events(with, DOUBLE_ROOM) == 0);
  with->engine->activate(0);
}

void memory_scenario(session* with) {
  driver_api* const cu = &with->cu;
  CUdeviceptr a = 0;
  size_t pitch = 0;
  size_t left = 0;
  size_t total = 0;
  const uint64_t before = driver_calls("cuMemAlloc_v2");
  CHECK(cu->cuMemAlloc_v2(&a, 1000) == 0);
  CHECK(last_event(with, DOUBLE_ALLOCATE)->bytes == 1000);
  CHECK(last_event(with, DOUBLE_ALLOCATE)->context != NULL);
  CHECK(driver_calls("cuMemAlloc_v2") == before);
  CHECK(cu->cuMemFree_v2(a) == 0 && last_event(with, DOUBLE_RELEASE)->address == a);
  CHECK(cu->cuMemAllocPitch_v2(&a, &pitch, 700, 3, 4) == 0 && pitch == 1024);
  CHECK(last_event(with, DOUBLE_ALLOCATE)->bytes == 3 * 1024);
  CHECK(cu->cuMemGetInfo_v2(&left, &total) == 0 && left == 1000 && total == 2000);
  /* Passed on: the driver's own memory, which goes back to it. */
  with->engine->pass(1);
  with->engine->clear();
  CHECK(cu->cuMemAlloc_v2(&a, 1000) == 0);
  CHECK(driver_calls("cuMemAlloc_v2") == before + 1);
  CHECK(cu->cuMemsetD8_v2(a, 3, 1000) == 0 && ((unsigned char*)(uintptr_t)a)[999] == 3);
  CHECK(cu->cuMemFree_v2(a) == 0 && count_events(with, DOUBLE_RELEASE) == 0);
  /* Out of memory in the driver: room is made, once. */
  with->engine->pass(2);
  fail_once("cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cu->cuMemAlloc_v2(&a, 5000) == 0);
  CHECK(last_event(with, DOUBLE_ROOM)->bytes == 5000);
  CHECK(cu->cuMemFree_v2(a) == 0);
  fail_once("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cu->cuMemCreate(&handle, 7000, NULL, 0) == 0);
  CHECK(last_event(with, DOUBLE_ROOM)->bytes == 7000);
  /* What makes no sense is the driver's to say. */
  with->engine->pass(0);
  with->engine->clear();
  CHECK(cu->cuMemFree_v2(0) == 0);
  fail_once("cuMemAlloc_v2", CUDA_ERROR_INVALID_VALUE);
  CHECK(cu->cuMemAlloc_v2(&a, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(count_events(with, DOUBLE_ALLOCATE) == 0 && count_events(with, DOUBLE_ROOM) == 0);
  ordered(with);
  within_a_capture(with);
  taken_by_the_driver(with);
}

void pointers_scenario(session* with) {
  driver_api* const cu = &with->cu;
  const CUdeviceptr a = new_block(with, 5000);
  with->engine->activate(1);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(cu->cuMemGetAddressRange_v2(&base, &bytes, a + 4000) == 0 && base == a && bytes == 5000);
  CHECK(cu->cuMemGetAddressRange_v2(&base, NULL, a + 1) == 0 && base == a);
  uint64_t words[8];
  static const struct {
    CUpointer_attribute which;
    uint64_t expected;
  } simple[] = {{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE},
                {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 3},
                {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 5000},
                {CU_POINTER_ATTRIBUTE_IS_MANAGED, 0},
                {CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, 0},
                {CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL, UINT32_MAX},
                {CU_POINTER_ATTRIBUTE_MAPPED, 1}};
  for (size_t i = 0; i < sizeof(simple) / sizeof(simple[0]); ++i) {
    words[0] = 0;
    CHECK(cu->cuPointerGetAttribute(words, simple[i].which, a + 8) == 0);
    CHECK(words[0] == simple[i].expected);
  }
  CHECK(cu->cuPointerGetAttribute(words, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, a + 8) == 0);
  CHECK(words[0] == a + 8);
  CHECK(cu->cuPointerGetAttribute(words, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, a + 8) == 0);
  CHECK(words[0] == a);
  CHECK(cu->cuPointerGetAttribute(words, CU_POINTER_ATTRIBUTE_HOST_POINTER, a) != 0);
  CUpointer_attribute several[3] = {CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
  memset(words, 0xff, sizeof(words));
  void* places[3] = {&words[0], &words[1], &words[2]};
  CHECK(cu->cuPointerGetAttributes(3, several, places, a) == 0);
  CHECK(words[0] == 0 && (uint32_t)words[1] == CU_MEMORYTYPE_DEVICE && words[2] != 0);
  /* Not ours: the driver's answer. */
  CHECK(cu->cuPointerGetAttribute(words, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096) != 0);
  with->engine->activate(0);
}

static void check_pin(session* with, CUdeviceptr address, int delta, int reason) {
  const double_event* const event = last_event(with, DOUBLE_PIN);
  CHECK(event->address == address && event->result == delta);
  CHECK(event->reason == reason);
  with->engine->clear();
}

static void values(session* with, CUdeviceptr a) {
  driver_api* const cu = &with->cu;
  with->engine->activate(1);
  uint64_t word = 0;
  CHECK(cu->cuStreamWriteValue32_v2(with->stream, a, 12, 0) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->kind == PENSTOCK_WORK_VALUE);
  CHECK(cu->cuStreamWriteValue64_v2(with->stream, a + 8, 13, 0) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->touches[0].bytes == 8);
  CHECK(count_events(with, DOUBLE_PIN) == 0);
  with->engine->read(a + 8, &word, 8);
  CHECK(word == 13);
  CHECK(cu->cuStreamWaitValue32_v2(with->stream, a, 12, 0) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->touches[0].access == PENSTOCK_ACCESS_READ);
  check_pin(with, a, 2, PENSTOCK_PIN_WAIT);
  CHECK(cu->cuStreamWaitValue64_v2(with->stream, a, 12, 0) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_WAIT);
  CUstreamBatchMemOpParams both[4];
  memset(both, 0, sizeof(both));
  both[3].operation = CU_STREAM_MEM_OP_ATOMIC_REDUCTION;
  both[3].atomicReduction.address = a + 40;
  both[0].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  both[0].waitValue.address = a + 16;
  both[1].operation = 5; /* a write */
  both[1].waitValue.address = a + 24;
  both[2].operation = CU_STREAM_MEM_OP_BARRIER;
  both[2].waitValue.address = a + 32;
  CHECK(cu->cuStreamBatchMemOp_v2(with->stream, 4, both, 0) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->count == 3);
  CHECK(touches_address(last_event(with, DOUBLE_BEGIN), a + 40));
  check_pin(with, a + 16, 2, PENSTOCK_PIN_WAIT);
  with->engine->activate(0);
}

void pins_scenario(session* with) {
  driver_api* const cu = &with->cu;
  const CUdeviceptr a = new_block(with, 4096);
  void* const as_pointer = (void*)(uintptr_t)a;
  CUipcMemHandle ipc;
  CUmemGenericAllocationHandle handle = 0;
  CUtexObject texture = 0;
  int one = 1;
  CHECK(cu->cuIpcGetMemHandle(&ipc, a) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  CHECK(cu->cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  CHECK(cu->cuMemRetainAllocationHandle(&handle, as_pointer) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  CHECK(cu->cuMemGetHandleForAddressRange(&handle, a, 64, 1, 0) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  CHECK(cu->cuMulticastBindAddr_v2(handle, 0, 0, a, 64, 0) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  /* From where a page begins, before the block. */
  const int64_t pins = with->engine->pins(a);
  CHECK(cu->cuMemGetHandleForAddressRange(NULL, a - 1024, 2048, 1, 0) == 0);
  CHECK(with->engine->pins(a) == pins + 1);
  CHECK(cu->cuMemGetHandleForAddressRange(NULL, a - 1024, 1024, 1, 0) == 0);
  CHECK(with->engine->pins(a) == pins + 1);
  CHECK(cu->cuLogicalEndpointBindAddr(0, 0, 0, as_pointer, 64, 0) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_SHARED);
  CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
  resource.res.linear.devPtr = a;
  CHECK(cu->cuTexObjectCreate(&texture, &resource, NULL, NULL) == 0);
  check_pin(with, a, 1, PENSTOCK_PIN_TEXTURE);
  fail_once("cuTexObjectDestroy", CUDA_ERROR_INVALID_VALUE);
  CHECK(cu->cuTexObjectDestroy(texture) != 0);
  CHECK(count_events(with, DOUBLE_PIN) == 0);
  CHECK(cu->cuTexObjectDestroy(texture) == 0);
  check_pin(with, a, -1, 0);
  fail_once("cuTexObjectCreate", CUDA_ERROR_INVALID_VALUE);
  CHECK(cu->cuTexObjectCreate(&texture, &resource, NULL, NULL) != 0);
  check_pin(with, a, -1, 0);
  with->engine->refuse_pin(1);
  CHECK(cu->cuTexObjectCreate(&texture, &resource, NULL, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
  with->engine->refuse_pin(1);
  CHECK(cu->cuIpcGetMemHandle(&ipc, a) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cu->cuTexRefSetAddress_v2(NULL, NULL, a, 64) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_TEXTURE);
  CHECK(cu->cuTexRefSetAddress2D_v3(NULL, NULL, a, 64) == 0);
  check_pin(with, a, 2, PENSTOCK_PIN_TEXTURE);
  /* A map that shows its address is found in the parameters; one that hides it pins. */
  CUtensorMap map;
  CHECK(cu->cuTensorMapEncodeTiled(&map, 0, 2, as_pointer, NULL, NULL, NULL, NULL, 0, 0, 0, 0) ==
        0);
  CHECK(count_events(with, DOUBLE_PIN) == 0);
  CHECK(cu->cuTensorMapEncodeTiled(&map, 0, 5, as_pointer, NULL, NULL, NULL, NULL, 0, 0, 0, 0) ==
        0);
  check_pin(with, a, 2, PENSTOCK_PIN_DESCRIPTOR);
  CHECK(cu->cuTensorMapReplaceAddress(&map, (void*)(uintptr_t)(a + 128)) == 0);
  check_pin(with, a + 128, 2, PENSTOCK_PIN_DESCRIPTOR);
  /* Memory that is not the engine's is of no interest. */
  with->engine->clear();
  CHECK(cu->cuIpcGetMemHandle(&ipc, 4096) == 0 && count_events(with, DOUBLE_PIN) == 0);
  values(with, a);
}

void life_scenario(session* with) {
  driver_api* const cu = &with->cu;
  CUcontext context = NULL;
  CHECK(cu->cuCtxCreate_v2(&context, 0, 0) == 0);
  CHECK(cu->cuCtxDestroy_v2(context) == 0);
  CHECK(last_event(with, DOUBLE_CONTEXT)->context == context);
  with->engine->clear();
  const uint64_t held = driver_calls("cuDevicePrimaryCtxRetain");
  CHECK(cu->cuDevicePrimaryCtxReset_v2(0) == 0);
  CHECK(last_event(with, DOUBLE_CONTEXT)->context == context);
  CHECK(driver_calls("cuDevicePrimaryCtxRetain") == held + 1);
  CHECK(driver_calls("cuDevicePrimaryCtxRelease_v2") >= 1);
  /* Symbols without a version are the first forms, which ctypes and the like find. */
  with->engine->clear();
  CHECK(cu->cuDevicePrimaryCtxReset(0) == 0);
  CHECK(last_event(with, DOUBLE_CONTEXT)->context == context);
  CHECK(cu->cuCtxCreate(&context, 0, 0) == 0);
  CHECK(cu->cuCtxDestroy(context) == 0);
  CHECK(count_events(with, DOUBLE_CONTEXT) == 2);
  CHECK(cu->cuGreenCtxDestroy((CUgreenCtx)with) == 0);
  CHECK(last_event(with, DOUBLE_CONTEXT)->context == with);
  CHECK(cu->cuStreamDestroy(with->stream) == 0);
  CHECK(last_event(with, DOUBLE_STREAM)->stream == (uintptr_t)with->stream);
  with->engine->clear();
  CHECK(cu->cuStreamDestroy_v2(with->stream) == 0);
  CHECK(last_event(with, DOUBLE_STREAM)->stream == (uintptr_t)with->stream);
}
