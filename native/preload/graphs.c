/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs.  What an executable graph touches is read from its nodes when it is made, whether they
 * were captured, added by hand, cloned or nested; it is pinned until the graph is destroyed, and
 * announced whenever the graph is launched.  Changes to an executable graph add to what is known of
 * it; an update from another graph replaces that.
 *
 * Thread rule: any thread.  The list of graphs has a lock, which only graph calls take.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload/copies.h"
#include "preload/parameters.h"

enum { kBuckets = 256, kDeepest = 32 };

typedef struct program {
  CUgraphExec exec;
  struct program* next;
  bool opaque;
  uint32_t count;
  penstock_touch touches[];
} program;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static program* programs[kBuckets];

/* ---- What a graph touches ------------------------------------------------------------------- */

static void collect(penstock_call* call, CUgraph graph, int depth);

static void collect_launch(penstock_call* call, CUfunction function, CUkernel kernel,
                           void** parameters, void** extra) {
  if (function == NULL) function = (CUfunction)kernel;
  if (!penstock_gather(&call->touches, call->engine, function, parameters, extra)) {
    call->work.opaque = 1;
  }
}

static CUresult collect_kernel(penstock_call* call, CUgraphNode node) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  CUDA_KERNEL_NODE_PARAMS_v2 values;
  memset(&values, 0, sizeof(values));
  if (penstock_driver.cuGraphKernelNodeGetParams_v2 != NULL) {
    result = penstock_driver.cuGraphKernelNodeGetParams_v2(node, &values);
  }
  if (result != CUDA_SUCCESS && penstock_driver.cuGraphKernelNodeGetParams != NULL) {
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    memset(&old, 0, sizeof(old));
    result = penstock_driver.cuGraphKernelNodeGetParams(node, &old);
    values.func = old.func;
    values.kernelParams = old.kernelParams;
    values.extra = old.extra;
  }
  if (result == CUDA_SUCCESS) {
    collect_launch(call, values.func, values.kern, values.kernelParams, values.extra);
  }
  return result;
}

static CUresult collect_other(penstock_call* call, CUgraphNode node, CUgraphNodeType type,
                              int depth) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY && penstock_driver.cuGraphMemcpyNodeGetParams != NULL) {
    CUDA_MEMCPY3D copy;
    result = penstock_driver.cuGraphMemcpyNodeGetParams(node, &copy);
    if (result == CUDA_SUCCESS) penstock_touch_3d(call, &copy);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET &&
             penstock_driver.cuGraphMemsetNodeGetParams != NULL) {
    CUDA_MEMSET_NODE_PARAMS_v1 fill;
    result = penstock_driver.cuGraphMemsetNodeGetParams(node, &fill);
    if (result == CUDA_SUCCESS) {
      penstock_touch_fill(call, fill.dst, fill.pitch, fill.elementSize, fill.width, fill.height);
    }
  } else if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP &&
             penstock_driver.cuGraphBatchMemOpNodeGetParams != NULL) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS words;
    result = penstock_driver.cuGraphBatchMemOpNodeGetParams(node, &words);
    if (result == CUDA_SUCCESS) penstock_touch_words(call, words.paramArray, words.count);
  } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < kDeepest &&
             penstock_driver.cuGraphChildGraphNodeGetGraph != NULL) {
    CUgraph child = NULL;
    result = penstock_driver.cuGraphChildGraphNodeGetGraph(node, &child);
    if (result == CUDA_SUCCESS) collect(call, child, depth + 1);
  }
  return result;
}

/* The bodies of a conditional node cannot be asked for; nor can what a newer driver may bring. */
static void collect_node(penstock_call* call, CUgraphNode node, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (penstock_driver.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS) {
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
      result = collect_kernel(call, node);
    } else if (type >= CU_GRAPH_NODE_TYPE_HOST && type <= CU_GRAPH_NODE_TYPE_MEM_FREE &&
               type != CU_GRAPH_NODE_TYPE_GRAPH) {
      result = CUDA_SUCCESS; /* host functions, events, semaphores, the driver's own memory */
    } else {
      result = collect_other(call, node, type, depth);
    }
  }
  if (result != CUDA_SUCCESS) call->work.opaque = 1;
}

static void collect(penstock_call* call, CUgraph graph, int depth) {
  size_t count = 0;
  CUgraphNode* nodes = NULL;
  bool found = penstock_driver.cuGraphGetNodes != NULL &&
               penstock_driver.cuGraphNodeGetType != NULL &&
               penstock_driver.cuGraphGetNodes(graph, NULL, &count) == CUDA_SUCCESS;
  if (found && count != 0) {
    nodes = malloc(count * sizeof(CUgraphNode));
    found = nodes != NULL && penstock_driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS;
  }
  for (size_t i = 0; found && i < count; ++i) collect_node(call, nodes[i], depth);
  if (!found) call->work.opaque = 1;
  free(nodes);
}

static int by_address(const void* left, const void* right) {
  const uint64_t a = ((const penstock_touch*)left)->address;
  const uint64_t b = ((const penstock_touch*)right)->address;
  return a < b ? -1 : a > b;
}

/* A model's weight stands in many nodes: each address once, with the most that is said of it. */
static uint32_t merge(penstock_touch* touches, uint32_t count) {
  qsort(touches, count, sizeof(*touches), by_address);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    penstock_touch* const last = &touches[kept - 1];
    if (kept == 0 || last->address != touches[i].address) {
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

/* ---- The executable graphs there are -------------------------------------------------------- */

static program** place_of(CUgraphExec exec) {
  program** at = &programs[((uintptr_t)exec >> 6) % kBuckets];
  while (*at != NULL && (*at)->exec != exec) at = &(*at)->next;
  return at;
}

static void pin_all(penstock_interposer* engine, const program* of, int delta) {
  for (uint32_t i = 0; of != NULL && i < of->count; ++i) {
    engine->pin(of->touches[i].address, delta, PENSTOCK_PIN_GRAPH);
  }
}

/* Put `call`'s touches, and with `add` those known before, in the place of what is known.  The new
 * ones are pinned before the old ones are let go.  Ends the call's touches. */
static void keep(penstock_call* call, CUgraphExec exec, bool add) {
  pthread_mutex_lock(&lock);
  program** const at = place_of(exec);
  program* const old = *at;
  const program* const more = add ? old : NULL;
  for (uint32_t i = 0; more != NULL && i < more->count; ++i) {
    const penstock_touch* const each = &more->touches[i];
    penstock_touches_push(&call->touches, each->address, each->bytes, each->access);
  }
  const uint32_t count = merge(call->touches.list, call->touches.count);
  program* const made = malloc(sizeof(program) + count * sizeof(penstock_touch));
  if (made != NULL) {
    made->exec = exec;
    made->next = old != NULL ? old->next : NULL;
    made->opaque = call->work.opaque || call->touches.lost || (add && (!old || old->opaque));
    made->count = count;
    memcpy(made->touches, call->touches.list, count * sizeof(penstock_touch));
    pin_all(call->engine, made, 1);
    *at = made;
  } else if (old != NULL) {
    *at = old->next; /* unknown from now on, which a launch says as opaque */
  }
  pin_all(call->engine, old, -1);
  free(old);
  pthread_mutex_unlock(&lock);
  penstock_touches_free(&call->touches);
}

static CUresult after_making(CUresult result, CUgraphExec* exec, CUgraph graph,
                             unsigned long long flags) {
  penstock_interposer* const engine = penstock_engine();
  if (result != CUDA_SUCCESS || engine == NULL) return result;
  penstock_call call;
  penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, NULL);
  collect(&call, graph, 0);
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
    /* Launches from the device are seen by nobody. */
    for (uint32_t i = 0; i < call.touches.count; ++i) {
      engine->pin(call.touches.list[i].address, 1, PENSTOCK_PIN_SHARED);
    }
  }
  keep(&call, *exec, false);
  return result;
}

CUresult penstock_on_cuGraphInstantiate(penstock_hook* self, CUgraphExec* exec, CUgraph graph,
                                        CUgraphNode* error, char* log, size_t bytes) {
  return after_making(PENSTOCK_REAL(cuGraphInstantiate)(exec, graph, error, log, bytes), exec,
                      graph, 0);
}

CUresult penstock_on_cuGraphInstantiateWithFlags(penstock_hook* self, CUgraphExec* exec,
                                                 CUgraph graph, unsigned long long flags) {
  return after_making(PENSTOCK_REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph,
                      flags);
}

CUresult penstock_on_cuGraphInstantiateWithParams(penstock_hook* self, CUgraphExec* exec,
                                                  CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* options) {
  const unsigned long long flags = options != NULL ? options->flags : 0;
  return after_making(PENSTOCK_REAL(cuGraphInstantiateWithParams)(exec, graph, options), exec,
                      graph, flags);
}

CUresult penstock_on_cuGraphExecUpdate(penstock_hook* self, CUgraphExec exec, CUgraph graph,
                                       CUgraphNode* error, CUgraphExecUpdateResult* why) {
  return after_making(PENSTOCK_REAL(cuGraphExecUpdate)(exec, graph, error, why), &exec, graph, 0);
}

CUresult penstock_on_cuGraphExecUpdateV2(penstock_hook* self, CUgraphExec exec, CUgraph graph,
                                         CUgraphExecUpdateResultInfo* why) {
  return after_making(PENSTOCK_REAL(cuGraphExecUpdate_v2)(exec, graph, why), &exec, graph, 0);
}

/* ---- Changes to one node -------------------------------------------------------------------- */

#define PENSTOCK_DO_CHANGE(description, real_call)             \
  const CUresult result = (real_call);                         \
  penstock_interposer* const engine = penstock_engine();       \
  if (result != CUDA_SUCCESS || engine == NULL) return result; \
  penstock_call call;                                          \
  penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, NULL);  \
  description;                                                 \
  keep(&call, exec, true);                                     \
  return result

CUresult penstock_on_cuGraphExecKernelNodeSetParams(penstock_hook* self, CUgraphExec exec,
                                                    CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS_v1* values) {
  PENSTOCK_DO_CHANGE(collect_launch(&call, values->func, NULL, values->kernelParams, values->extra),
                     PENSTOCK_REAL(cuGraphExecKernelNodeSetParams)(exec, node, values));
}

CUresult penstock_on_cuGraphExecKernelNodeSetParamsV2(penstock_hook* self, CUgraphExec exec,
                                                      CUgraphNode node,
                                                      const CUDA_KERNEL_NODE_PARAMS_v2* values) {
  PENSTOCK_DO_CHANGE(
      collect_launch(&call, values->func, values->kern, values->kernelParams, values->extra),
      PENSTOCK_REAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, values));
}

CUresult penstock_on_cuGraphExecMemcpyNodeSetParams(penstock_hook* self, CUgraphExec exec,
                                                    CUgraphNode node, const CUDA_MEMCPY3D* values,
                                                    CUcontext context) {
  PENSTOCK_DO_CHANGE(penstock_touch_3d(&call, values),
                     PENSTOCK_REAL(cuGraphExecMemcpyNodeSetParams)(exec, node, values, context));
}

CUresult penstock_on_cuGraphExecMemsetNodeSetParams(penstock_hook* self, CUgraphExec exec,
                                                    CUgraphNode node,
                                                    const CUDA_MEMSET_NODE_PARAMS_v1* values,
                                                    CUcontext context) {
  PENSTOCK_DO_CHANGE(penstock_touch_fill(&call, values->dst, values->pitch, values->elementSize,
                                         values->width, values->height),
                     PENSTOCK_REAL(cuGraphExecMemsetNodeSetParams)(exec, node, values, context));
}

CUresult penstock_on_cuGraphExecChildGraphNodeSetParams(penstock_hook* self, CUgraphExec exec,
                                                        CUgraphNode node, CUgraph child) {
  PENSTOCK_DO_CHANGE(collect(&call, child, 1),
                     PENSTOCK_REAL(cuGraphExecChildGraphNodeSetParams)(exec, node, child));
}

CUresult penstock_on_cuGraphExecBatchMemOpNodeSetParams(
    penstock_hook* self, CUgraphExec exec, CUgraphNode node,
    const CUDA_BATCH_MEM_OP_NODE_PARAMS* values) {
  PENSTOCK_DO_CHANGE(penstock_touch_words(&call, values->paramArray, values->count),
                     PENSTOCK_REAL(cuGraphExecBatchMemOpNodeSetParams)(exec, node, values));
}

static void collect_values(penstock_call* call, const CUgraphNodeParams* values) {
  const CUDA_MEMSET_NODE_PARAMS_v1* const fill = &values->memset;
  switch (values->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      collect_launch(call, values->kernel.func, values->kernel.kern, values->kernel.kernelParams,
                     values->kernel.extra);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      penstock_touch_3d(call, &values->memcpy.copyParams);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      penstock_touch_fill(call, fill->dst, fill->pitch, fill->elementSize, fill->width,
                          fill->height);
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      collect(call, values->graph.graph, 1);
      break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      penstock_touch_words(call, values->memOp.paramArray, values->memOp.count);
      break;
    default:
      if (values->type >= CU_GRAPH_NODE_TYPE_CONDITIONAL) call->work.opaque = 1;
  }
}

CUresult penstock_on_cuGraphExecNodeSetParams(penstock_hook* self, CUgraphExec exec,
                                              CUgraphNode node, CUgraphNodeParams* values) {
  PENSTOCK_DO_CHANGE(collect_values(&call, values),
                     PENSTOCK_REAL(cuGraphExecNodeSetParams)(exec, node, values));
}

CUresult penstock_on_cuGraphExecDestroy(penstock_hook* self, CUgraphExec exec) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  const CUresult result = PENSTOCK_REAL(cuGraphExecDestroy)(exec);
  if (result != CUDA_SUCCESS || engine == NULL) return result;
  pthread_mutex_lock(&lock);
  program** const at = place_of(exec);
  program* const gone = *at;
  if (gone != NULL) *at = gone->next;
  pthread_mutex_unlock(&lock);
  pin_all(engine, gone, -1);
  free(gone);
  return result;
}

/* ---- Launches and captures ------------------------------------------------------------------ */

static void describe(penstock_call* call, CUgraphExec exec) {
  call->work.function = (uint64_t)(uintptr_t)exec;
  pthread_mutex_lock(&lock);
  const program* const known = *place_of(exec);
  call->work.opaque = known == NULL || known->opaque;
  for (uint32_t i = 0; known != NULL && i < known->count; ++i) {
    const penstock_touch* const each = &known->touches[i];
    penstock_touches_push(&call->touches, each->address, each->bytes, each->access);
  }
  pthread_mutex_unlock(&lock);
}

CUresult penstock_on_cuGraphLaunch(penstock_hook* self, CUgraphExec exec, CUstream stream) {
  PENSTOCK_DO_LAUNCH(
      penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, penstock_stream(self, stream));
      describe(&call, exec), PENSTOCK_REAL(cuGraphLaunch)(exec, stream));
}

static CUresult after_beginning(CUresult result) {
  if (result == CUDA_SUCCESS) atomic_fetch_add(&penstock_captures, 1);
  return result;
}

CUresult penstock_on_cuStreamBeginCapture(penstock_hook* self, CUstream stream) {
  return after_beginning(PENSTOCK_REAL(cuStreamBeginCapture)(stream));
}

CUresult penstock_on_cuStreamBeginCaptureV2(penstock_hook* self, CUstream stream,
                                            CUstreamCaptureMode mode) {
  return after_beginning(PENSTOCK_REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult penstock_on_cuStreamBeginCaptureToGraph(penstock_hook* self, CUstream stream,
                                                 CUgraph graph, const CUgraphNode* dependencies,
                                                 const CUgraphEdgeData* edges, size_t count,
                                                 CUstreamCaptureMode mode) {
  return after_beginning(
      PENSTOCK_REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, count, mode));
}

/* A capture that failed has ended as well.  One that ends unseen, with its stream, only makes later
 * work look whether it is being captured. */
CUresult penstock_on_cuStreamEndCapture(penstock_hook* self, CUstream stream, CUgraph* graph) {
  const CUresult result = PENSTOCK_REAL(cuStreamEndCapture)(stream, graph);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    uint32_t open = atomic_load(&penstock_captures);
    while (open != 0 && !atomic_compare_exchange_weak(&penstock_captures, &open, open - 1)) {
    }
  }
  return result;
}
