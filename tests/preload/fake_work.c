/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels, streams and graphs of the fake driver.  A launch runs its host function at once, or, on
 * a stream that is being captured, becomes a node with a copy of its parameters.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "fake_memory.h"

#define EXPORT __attribute__((visibility("default")))
enum { MOST_NODES = 64, MOST_BYTES = 32768 };

struct CUgraphNode_st {
  CUgraphNodeType type;
  const fake_kernel* kernel;
  unsigned char* packed;
  void* pointers[8];
  CUDA_MEMCPY3D copy;
  CUDA_MEMSET_NODE_PARAMS_v1 fill;
  CUdeviceptr to, from; /* a batch of one copy */
  size_t bytes;
  CUgraph child;
};
struct CUgraph_st {
  int count;
  struct CUgraphNode_st* nodes[MOST_NODES];
};
struct CUgraphExec_st {
  CUgraph graph; /* a copy */
};
struct CUstream_st {
  CUgraph capturing;
};

/* ---- The kernels ---------------------------------------------------------------------------- */

static void* pointer_at(const unsigned char* from, size_t offset) {
  void* found;
  memcpy(&found, from + offset, sizeof(found));
  return found;
}
static void add(const unsigned char* p) { /* float* out, const float* a, const float* b, int n */
  int n;
  memcpy(&n, p + 24, sizeof(n));
  for (int i = 0; i < n; ++i) {
    ((float*)pointer_at(p, 0))[i] =
        ((const float*)pointer_at(p, 8))[i] + ((const float*)pointer_at(p, 16))[i];
  }
}
static void by_value(
    const unsigned char* p) { /* int k, struct {int x; float* a; char c; float* b} */
  int k;
  memcpy(&k, p, sizeof(k));
  *(float*)pointer_at(p, 16) += (float)k;
  *(float*)pointer_at(p, 32) += (float)(2 * k);
}
static void many(const unsigned char* p) { /* struct {uint32_t* each[1000];} */
  for (int i = 0; i < 1000; ++i) ++*(uint32_t*)pointer_at(p, (size_t)i * 8);
}
static void nothing(const unsigned char* p) { (void)p; }

static const fake_kernel kernels[] = {
    {"add", add, 0, 0, 4, {0, 8, 16, 24}, {8, 8, 8, 4}},
    {"add_kernel_handle", add, 1, 0, 4, {0, 8, 16, 24}, {8, 8, 8, 4}},
    {"add", add, 0, 0, 4, {0, 8, 16, 24}, {8, 8, 8, 4}}, /* of another module */
    {"add_undescribed", add, 0, 1, 4, {0, 8, 16, 24}, {8, 8, 8, 4}},
    {"by_value", by_value, 0, 0, 2, {0, 8}, {4, 32}},
    {"many", many, 0, 0, 1, {0}, {8000}},
    {"nothing", nothing, 0, 0, 0, {0}, {0}},
    {"penstock_selftest", nothing, 0, 0, 0, {0}, {0}},
};

/* Of several kernels of one name, the last one is in FAKE_OTHER_MODULE, the first one in others. */
CUresult fake_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const size_t count = sizeof(kernels) / sizeof(kernels[0]);
  for (size_t n = 0; n < count; ++n) {
    const size_t i = module == FAKE_OTHER_MODULE ? count - 1 - n : n;
    if (strcmp(kernels[i].name, name) != 0) continue;
    *function = (CUfunction)&kernels[i];
    return 0;
  }
  return 500;
}

static CUresult tell(const fake_kernel* kernel, size_t index, size_t* offset, size_t* bytes) {
  if (index >= (size_t)kernel->count) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->offsets[index];
  *bytes = kernel->sizes[index];
  return 0;
}
EXPORT CUresult cuFuncGetName(const char** name, CUfunction function) {
  const fake_kernel* const kernel = (const fake_kernel*)function;
  if (kernel->is_undescribed) return CUDA_ERROR_NOT_SUPPORTED;
  if (kernel->is_kernel_handle) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name;
  return 0;
}
EXPORT CUresult cuKernelGetName(const char** name, CUkernel function) {
  const fake_kernel* const kernel = (const fake_kernel*)function;
  if (!kernel->is_kernel_handle) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name;
  return 0;
}
EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset,
                                   size_t* bytes) {
  const fake_kernel* const kernel = (const fake_kernel*)function;
  if (kernel->is_kernel_handle) return CUDA_ERROR_INVALID_HANDLE;
  return kernel->is_undescribed ? CUDA_ERROR_NOT_SUPPORTED : tell(kernel, index, offset, bytes);
}
EXPORT CUresult cuKernelGetParamInfo(CUkernel function, size_t index, size_t* offset,
                                     size_t* bytes) {
  const fake_kernel* const kernel = (const fake_kernel*)function;
  if (kernel->is_undescribed) return CUDA_ERROR_NOT_SUPPORTED;
  return kernel->is_kernel_handle ? tell(kernel, index, offset, bytes) : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- Launches ------------------------------------------------------------------------------- */

static void pack(const fake_kernel* kernel, void** parameters, void** extra,
                 unsigned char* packed) {
  for (int i = 0; parameters != NULL && i < kernel->count; ++i) {
    memcpy(packed + kernel->offsets[i], parameters[i], kernel->sizes[i]);
  }
  if (parameters != NULL || extra == NULL) return;
  const void* memory = NULL;
  size_t bytes = 0;
  for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) memory = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t*)extra[1];
  }
  memcpy(packed, memory, bytes);
}

static CUgraphNode add_node(CUgraph graph, CUgraphNodeType type) {
  CUgraphNode const node = calloc(1, sizeof(*node));
  node->type = type;
  graph->nodes[graph->count++] = node;
  return node;
}

static void set_kernel(CUgraphNode node, const fake_kernel* kernel, void** parameters,
                       void** extra) {
  if (node->packed == NULL) node->packed = calloc(1, MOST_BYTES);
  node->kernel = kernel;
  pack(kernel, parameters, extra, node->packed);
  for (int i = 0; i < kernel->count; ++i) node->pointers[i] = node->packed + kernel->offsets[i];
}

static CUresult launch(CUfunction function, CUstream stream, void** parameters, void** extra) {
  const fake_kernel* const kernel = (const fake_kernel*)function;
  if ((uintptr_t)stream > 2 && stream->capturing != NULL) {
    set_kernel(add_node(stream->capturing, CU_GRAPH_NODE_TYPE_KERNEL), kernel, parameters, extra);
    return 0;
  }
  unsigned char* const packed = calloc(1, MOST_BYTES);
  pack(kernel, parameters, extra, packed);
  kernel->run(packed);
  free(packed);
  return 0;
}

CUresult fake_cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                             unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                             CUstream stream, void** parameters, void** extra) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
  return launch(f, stream, parameters, extra);
}
CUresult fake_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** parameters,
                               void** extra) {
  return launch(f, config->hStream, parameters, extra);
}
CUresult fake_cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                        unsigned int gz, unsigned int bx, unsigned int by,
                                        unsigned int bz, unsigned int shared, CUstream stream,
                                        void** parameters) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
  return launch(f, stream, parameters, NULL);
}
CUresult fake_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned int count,
                                                   unsigned int flags) {
  (void)flags;
  for (unsigned int i = 0; i < count; ++i) {
    launch(launches[i].function, launches[i].hStream, launches[i].kernelParams, NULL);
  }
  return 0;
}

/* ---- Streams and captures ------------------------------------------------------------------- */

CUresult fake_cuStreamCreate(CUstream* stream, unsigned int flags) {
  (void)flags;
  *stream = calloc(1, sizeof(**stream));
  return 0;
}
CUresult fake_cuStreamDestroy_v2(CUstream stream) {
  free(stream);
  return 0;
}
EXPORT CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  (void)flags;
  *graph = calloc(1, sizeof(**graph));
  return 0;
}
CUresult fake_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  (void)mode;
  return cuGraphCreate(&stream->capturing, 0);
}
CUresult fake_cuStreamBeginCapture(CUstream stream) {
  return fake_cuStreamBeginCapture_v2(stream, 0);
}
CUresult fake_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                            CUgraph graph, CUgraphRecaptureCallback callback,
                                            void* data) {
  (void)mode, (void)callback, (void)data;
  graph->count = 0;
  stream->capturing = graph;
  return 0;
}
CUresult fake_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = stream->capturing;
  stream->capturing = NULL;
  return 0;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = (uintptr_t)stream > 2 && stream->capturing != NULL;
  return 0;
}

/* ---- Graphs --------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                        const CUgraphNode* dependencies, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS_v2* values) {
  (void)dependencies, (void)count;
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);
  const void* const kernel = values->func != NULL ? (void*)values->func : (void*)values->kern;
  set_kernel(*node, kernel, values->kernelParams, values->extra);
  return 0;
}
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         CUgraph child) {
  (void)dependencies, (void)count;
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_GRAPH);
  return cuGraphClone(&(*node)->child, child);
}
EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMCPY3D* copy, CUcontext context) {
  (void)dependencies, (void)count, (void)context;
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_MEMCPY);
  (*node)->copy = *copy;
  return 0;
}
EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS_v1* fill, CUcontext context) {
  (void)dependencies, (void)count, (void)context;
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_MEMSET);
  (*node)->fill = *fill;
  return 0;
}
EXPORT CUresult cuGraphAddConditionalNode(CUgraphNode* node, CUgraph graph, CUgraph body) {
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL);
  return body == NULL ? CUDA_SUCCESS : cuGraphClone(&(*node)->child, body);
}
EXPORT CUresult cuGraphAddMemcpyBatchNode(CUgraphNode* node, CUgraph graph, CUdeviceptr dst,
                                          CUdeviceptr src, size_t bytes) {
  *node = add_node(graph, CU_GRAPH_NODE_TYPE_MEMCPY_BATCH);
  (*node)->to = dst;
  (*node)->from = src;
  (*node)->bytes = bytes;
  return 0;
}
EXPORT CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  cuGraphCreate(clone, 0);
  for (int i = 0; i < graph->count; ++i) {
    const CUgraphNode from = graph->nodes[i];
    CUgraphNode const to = add_node(*clone, from->type);
    if (from->kernel != NULL) set_kernel(to, from->kernel, from->pointers, NULL);
    to->copy = from->copy;
    to->fill = from->fill;
    to->to = from->to;
    to->from = from->from;
    to->bytes = from->bytes;
    if (from->child != NULL) cuGraphClone(&to->child, from->child);
  }
  return 0;
}
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  *count = (size_t)graph->count;
  if (nodes != NULL) memcpy(nodes, graph->nodes, *count * sizeof(CUgraphNode));
  return 0;
}
EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  *type = node->type;
  return 0;
}
EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  *graph = node->child;
  return 0;
}
EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node,
                                              CUDA_KERNEL_NODE_PARAMS_v2* values) {
  memset(values, 0, sizeof(*values));
  if (node->kernel->is_kernel_handle) {
    values->kern = (CUkernel)node->kernel;
  } else {
    values->func = (CUfunction)node->kernel;
  }
  values->kernelParams = node->pointers;
  return 0;
}
EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* values) {
  *values = node->copy;
  return 0;
}
EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v1* values) {
  *values = node->fill;
  return 0;
}
EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                               CUDA_BATCH_MEM_OP_NODE_PARAMS* values) {
  (void)node, (void)values;
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams* values) {
  memset(values, 0, sizeof(*values));
  values->type = node->type;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH) {
    values->memcpyBatch = (CUDA_MEMCPY_BATCH_NODE_PARAMS_V1){
        .count = 1, .dsts = &node->to, .srcs = &node->from, .sizes = &node->bytes};
    return 0;
  }
  values->conditional.size = 1;
  values->conditional.phGraph_out = &node->child;
  return node->child != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult fake_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                          unsigned long long flags) {
  (void)flags;
  *exec = calloc(1, sizeof(**exec));
  return cuGraphClone(&(*exec)->graph, graph);
}
CUresult fake_cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                                 size_t bytes) {
  (void)error, (void)log, (void)bytes;
  return fake_cuGraphInstantiateWithFlags(exec, graph, 0);
}
/* The other form takes the same. */
extern __typeof__(fake_cuGraphInstantiate) fake_cuGraphInstantiate_v2
    __attribute__((alias("fake_cuGraphInstantiate")));
CUresult fake_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* options) {
  return fake_cuGraphInstantiateWithFlags(exec, graph, options->flags);
}
CUresult fake_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                   CUgraphExecUpdateResultInfo* result) {
  (void)result;
  return cuGraphClone(&exec->graph, graph);
}
/* The node is one of the graph that the executable one was made from: found by its place. */
CUresult fake_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v2* values) {
  (void)node;
  if (exec->graph->count == 0) return 0;
  set_kernel(exec->graph->nodes[0], (const fake_kernel*)values->func, values->kernelParams,
             values->extra);
  return 0;
}
CUresult fake_cuGraphExecDestroy(CUgraphExec exec);
static void (*meanwhile)(void);
EXPORT void fake_meanwhile(void (*what)(void)) { meanwhile = what; }
CUresult fake_cuGraphExecDestroy(CUgraphExec exec) {
  void (*const what)(void) = meanwhile;
  meanwhile = NULL;
  free(exec);
  if (what != NULL) what();
  return 0;
}
static void run(CUgraph graph) {
  for (int i = 0; i < graph->count; ++i) {
    const CUgraphNode node = graph->nodes[i];
    const CUDA_MEMSET_NODE_PARAMS_v1* const fill = &node->fill;
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) node->kernel->run(node->packed);
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) fake_copy_3d(&node->copy);
    if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
      fake_fill(fill->dst, fill->pitch, fill->value, fill->elementSize, fill->width, fill->height);
    }
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH) {
      memmove((void*)(uintptr_t)node->to, (const void*)(uintptr_t)node->from, node->bytes);
    }
    if (node->child != NULL) run(node->child);
  }
}
CUresult fake_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  (void)stream;
  run(exec->graph);
  return 0;
}
