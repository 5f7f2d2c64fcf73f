/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs.  What an executable graph touches is read from its nodes before it is made, whether they
 * were captured, added by hand, cloned or nested; it is pinned until the graph is destroyed, and
 * announced whenever the graph is launched.  Changes to an executable graph add to what is known of
 * it; an update from another graph replaces that.  A graph whose memory cannot be pinned is not
 * made.
 *
 * Thread rule: any thread.  The list of graphs has a lock, which only graph calls take.
 */
#include "preload/graphs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload/copies.h"
#include "preload/parameters.h"

enum { kBuckets = 256, kDeepest = 32 };

typedef struct {
  penstock_touch touch;
  uint64_t pin;
} pinned;

struct penstock_program {
  CUgraphExec exec;
  penstock_program* next;
  bool opaque;
  uint32_t count;
  pinned touches[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static penstock_program* programs[kBuckets];

/* ---- What a graph touches ------------------------------------------------------------------- */

void penstock_touch_launch(penstock_call* call, CUfunction function, CUkernel kernel,
                           void** parameters, void** extra) {
  if (function == NULL) function = (CUfunction)kernel;
  if (!penstock_gather(&call->touches, call->engine, function, parameters, extra)) {
    call->work.opaque = 1;
  }
}

static CUresult read_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* values) {
  CUDA_KERNEL_NODE_PARAMS_v1 old;
  CUresult result = PENSTOCK_ASK(cuGraphKernelNodeGetParams_v2, node, values);
  if (result == CUDA_SUCCESS) return result;
  result = PENSTOCK_ASK(cuGraphKernelNodeGetParams, node, &old);
  if (result != CUDA_SUCCESS) return result;
  *values = (CUDA_KERNEL_NODE_PARAMS_v2){
      .func = old.func, .kernelParams = old.kernelParams, .extra = old.extra};
  return result;
}

static CUresult read_node(CUgraphNode node, CUgraphNodeParams* values) {
  const CUresult result = PENSTOCK_ASK(cuGraphNodeGetType, node, &values->type);
  if (result != CUDA_SUCCESS) return result;
  switch (values->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return read_kernel(node, &values->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return PENSTOCK_ASK(cuGraphMemcpyNodeGetParams, node, &values->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return PENSTOCK_ASK(cuGraphMemsetNodeGetParams, node, &values->memset);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return PENSTOCK_ASK(cuGraphChildGraphNodeGetGraph, node, &values->graph.graph);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return PENSTOCK_ASK(cuGraphBatchMemOpNodeGetParams, node, &values->memOp);
    default:
      return result;
  }
}

/* Host functions, events, semaphores and the driver's own memory touch nothing.  The bodies of a
 * conditional node cannot be asked for; nor can what a newer driver may bring. */
void penstock_touch_node(penstock_call* call, const CUgraphNodeParams* values, int depth) {
  switch (values->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      penstock_touch_launch(call, values->kernel.func, values->kernel.kern,
                            values->kernel.kernelParams, values->kernel.extra);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      penstock_touch_3d(call, &values->memcpy.copyParams);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      penstock_touch_node_fill(call, &values->memset);
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      penstock_touch_graph(call, values->graph.graph, depth + 1);
      break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      penstock_touch_words(call, values->memOp.paramArray, values->memOp.count);
      break;
    default:
      if (values->type >= CU_GRAPH_NODE_TYPE_CONDITIONAL) call->work.opaque = 1;
  }
}

void penstock_touch_graph(penstock_call* call, CUgraph graph, int depth) {
  size_t count = 0;
  CUgraphNode* nodes = NULL;
  bool found =
      depth <= kDeepest && PENSTOCK_ASK(cuGraphGetNodes, graph, NULL, &count) == CUDA_SUCCESS;
  if (found && count != 0) {
    nodes = malloc(count * sizeof(CUgraphNode));
    found = nodes != NULL && penstock_driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS;
  }
  for (size_t i = 0; found && i < count; ++i) {
    CUgraphNodeParams values;
    memset(&values, 0, sizeof(values));
    if (read_node(nodes[i], &values) == CUDA_SUCCESS) {
      penstock_touch_node(call, &values, depth);
    } else {
      call->work.opaque = 1;
    }
  }
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
  uint32_t kept = count != 0;
  for (uint32_t i = 1; i < count; ++i) {
    penstock_touch* const last = &touches[kept - 1];
    if (last->address != touches[i].address) {
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

static penstock_program** place_of(CUgraphExec exec) {
  penstock_program** at = &programs[((uintptr_t)exec >> 6) % kBuckets];
  while (*at != NULL && (*at)->exec != exec) at = &(*at)->next;
  return at;
}

static penstock_program* take(CUgraphExec exec) {
  pthread_mutex_lock(&lock);
  penstock_program** const at = place_of(exec);
  penstock_program* const taken = *at;
  if (taken != NULL) *at = taken->next;
  pthread_mutex_unlock(&lock);
  return taken;
}

static void keep(penstock_program* made) {
  pthread_mutex_lock(&lock);
  penstock_program** const at = place_of(made->exec);
  made->next = *at; /* none, as a rule */
  *at = made;
  pthread_mutex_unlock(&lock);
}

static void let_go(penstock_program* gone) {
  for (uint32_t i = 0; gone != NULL && i < gone->count; ++i) penstock_unpin(gone->touches[i].pin);
  free(gone);
}

static void touch_all(penstock_call* call, CUgraphExec exec) {
  pthread_mutex_lock(&lock);
  const penstock_program* const known = *place_of(exec);
  call->work.opaque |= known == NULL || known->opaque;
  for (uint32_t i = 0; known != NULL && i < known->count; ++i) {
    const penstock_touch* const each = &known->touches[i].touch;
    penstock_touches_push(&call->touches, each->address, each->bytes, each->access);
  }
  pthread_mutex_unlock(&lock);
}

/* A program of what `call` touches, pinned; NULL: there is no memory for that.  Ends the touches.
 * from_device: the device may launch it, which nobody sees. */
static penstock_program* pin_all(penstock_call* call, bool from_device) {
  const uint32_t count = merge(call->touches.list, call->touches.count);
  const bool refused = call->touches.lost || call->refusal != CUDA_SUCCESS;
  penstock_program* made =
      refused ? NULL : malloc(sizeof(penstock_program) + count * sizeof(pinned));
  if (made != NULL) *made = (penstock_program){.opaque = call->work.opaque};
  for (uint32_t i = 0; made != NULL && i < count; ++i) {
    const penstock_touch touch = call->touches.list[i];
    made->touches[i] = (pinned){.touch = touch};
    ++made->count;
    CUresult result = penstock_pin(touch.address, PENSTOCK_PIN_GRAPH, &made->touches[i].pin);
    if (result == CUDA_SUCCESS && from_device) {
      result = penstock_pin(touch.address, PENSTOCK_PIN_SHARED, NULL);
    }
    if (result == CUDA_SUCCESS) continue;
    let_go(made);
    made = NULL;
  }
  penstock_touches_free(&call->touches);
  return made;
}

CUresult penstock_settle(penstock_program* made, CUresult result, const CUgraphExec* exec) {
  if (result != CUDA_SUCCESS) {
    let_go(made);
    return result;
  }
  made->exec = *exec;
  penstock_program* const old = take(*exec);
  keep(made);
  let_go(old);
  return result;
}

penstock_program* penstock_read_graph(penstock_interposer* engine, CUgraph graph,
                                      unsigned long long flags) {
  penstock_call call;
  penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, NULL);
  penstock_touch_graph(&call, graph, 0);
  return pin_all(&call, (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0);
}

penstock_program* penstock_changed_graph(penstock_call* call, CUgraphExec exec) {
  touch_all(call, exec);
  return pin_all(call, false);
}

/* Off the list before its handle can be another's. */
CUresult penstock_on_cuGraphExecDestroy(penstock_hook* self, CUgraphExec exec) {
  penstock_program* const taken = take(exec);
  const CUresult result = PENSTOCK_REAL(cuGraphExecDestroy)(exec);
  if (result == CUDA_SUCCESS) {
    let_go(taken);
  } else if (taken != NULL) {
    keep(taken);
  }
  return result;
}

/* ---- Launches and captures ------------------------------------------------------------------ */

void penstock_describe_graph(penstock_call* call, penstock_interposer* engine, CUstream stream,
                             CUgraphExec exec) {
  penstock_work_on(call, engine, PENSTOCK_WORK_GRAPH, stream);
  call->work.function = (uint64_t)(uintptr_t)exec;
  touch_all(call, exec);
}

CUresult penstock_after_capture_began(CUresult result) {
  if (result == CUDA_SUCCESS) atomic_fetch_add(&penstock_captures, 1);
  return result;
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
