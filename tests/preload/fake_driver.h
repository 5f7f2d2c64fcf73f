/* SPDX-License-Identifier: Apache-2.0
 *
 * What the programs of these tests know of the fake driver beside CUDA's own names.
 */
#ifndef PENSTOCK_TESTS_FAKE_DRIVER_H_
#define PENSTOCK_TESTS_FAKE_DRIVER_H_

#include "preload/cuda_abi.h"

/* A kernel of the fake driver: a host function over its packed parameters. */
typedef struct fake_kernel {
  const char* name;
  void (*run)(const unsigned char* parameters);
  int is_kernel_handle; /* cuFuncGetParamInfo does not know it, cuKernelGetParamInfo does */
  int is_undescribed;   /* neither does, and nobody knows its name */
  int count;
  size_t offsets[8], sizes[8];
} fake_kernel;

/* A module beside the one that has everything. */
#define FAKE_OTHER_MODULE ((CUmodule)1)

/* Looked up by dlsym(). */
typedef uint64_t (*fake_calls_function)(const char* exported);
typedef void (*fake_fail_function)(const char* exported, CUresult result, int times);
/* The nth call from here on, of whatever function, fails, or it and all after it; `seen` counts. */
typedef void (*fake_fail_at_function)(uint64_t nth, int for_good, _Atomic(uint64_t)* seen);
/* The context of that stream is its own, whatever is current. */
typedef void (*fake_stream_elsewhere_function)(CUstream stream);
/* Before the next graph that is destroyed is known to be gone, as another thread may do it. */
typedef void (*fake_meanwhile_function)(void (*what)(void));

/* Of hooks, for programs that have no table of them. */
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
/* Any name: 512 bytes of the driver's own. */
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                              const char* name);
CUresult cuStreamCreate(CUstream* stream, unsigned int flags);

/* Functions that the table of hooks does not know. */
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device);
CUresult cuInit(unsigned int flags);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuGraphCreate(CUgraph* graph, unsigned int flags);
CUresult cuGraphClone(CUgraph* clone, CUgraph graph);
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS_v2* values);
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, CUgraph child);
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMCPY3D* copy, CUcontext context);
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS_v1* fill,
                              CUcontext context);
/* With a body only cuGraphNodeGetParams tells of. */
CUresult cuGraphAddConditionalNode(CUgraphNode* node, CUgraph graph, CUgraph body);
CUresult cuGraphAddMemcpyBatchNode(CUgraphNode* node, CUgraph graph, CUdeviceptr dst,
                                   CUdeviceptr src, size_t bytes);
CUresult cuFromTheFuture_v3(int value);

#endif /* PENSTOCK_TESTS_FAKE_DRIVER_H_ */
