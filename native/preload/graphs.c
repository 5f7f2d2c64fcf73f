/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs.  What an executable graph touches is read from its nodes before it is made, whether they
 * were captured, added by hand, cloned or nested; it is pinned until the graph is destroyed, and
 * announced whenever the graph is launched.  Changes to an executable graph add to what is known of
 * it; an update from another graph replaces that.  A graph whose memory cannot be pinned is not
 * made.
 *
 * Thread rule: any thread.
 */
#include "preload/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "preload/copies.h"
#include "preload/parameters.h"

enum { kDeepest = 32 };

/* ---- What a graph touches ------------------------------------------------------------------- */

void penstock_touch_launch(penstock_call* call, CUfunction function, CUkernel kernel,
                           void** parameters, void** extra) {
  if (function == NULL) function = (CUfunction)kernel;
  if (!penstock_gather(&call->touches, call->engine, function, parameters, extra)) {
    call->work.opaque = 1;
  }
}

static CUresult read_node(CUgraphNode node, CUgraphNodeParams* values) {
  const CUresult result = PENSTOCK_ASK(cuGraphNodeGetType, node, &values->type);
  if (result != CUDA_SUCCESS) return result;
  switch (values->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return PENSTOCK_ASK(cuGraphKernelNodeGetParams_v2, node, &values->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return PENSTOCK_ASK(cuGraphMemcpyNodeGetParams, node, &values->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return PENSTOCK_ASK(cuGraphMemsetNodeGetParams, node, &values->memset);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return PENSTOCK_ASK(cuGraphChildGraphNodeGetGraph, node, &values->graph.graph);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return PENSTOCK_ASK(cuGraphBatchMemOpNodeGetParams, node, &values->memOp);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: /* before CUDA 13.2 nobody tells */
      return PENSTOCK_ASK(cuGraphNodeGetParams, node, values);
    default:
      return result;
  }
}

static void touch_batch(penstock_call* call, const CUDA_MEMCPY_BATCH_NODE_PARAMS_V1* batch) {
  for (size_t i = 0; i < batch->count; ++i) {
    penstock_touch_bytes(call, batch->srcs[i], batch->sizes[i], PENSTOCK_ACCESS_READ);
    penstock_touch_bytes(call, batch->dsts[i], batch->sizes[i], PENSTOCK_ACCESS_WRITE);
  }
}

/* Host functions, events, semaphores and the driver's own memory touch nothing.  What a newer
 * driver may bring is not known; nor are the bodies of a conditional node, unless it is one of a
 * graph, read by read_node(). */
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
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
      touch_batch(call, &values->memcpyBatch);
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
    if (read_node(nodes[i], &values) != CUDA_SUCCESS) {
      call->work.opaque = 1;
    } else if (values.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      penstock_touch_node(call, &values, depth);
    } else {
      for (unsigned int body = 0; body < values.conditional.size; ++body) {
        penstock_touch_graph(call, values.conditional.phGraph_out[body], depth + 1);
      }
    }
  }
  if (!found) call->work.opaque = 1;
  free(nodes);
}

penstock_hold* penstock_read_graph(penstock_interposer* engine, CUgraph graph,
                                   unsigned long long flags) {
  penstock_call call;
  penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, NULL);
  penstock_touch_graph(&call, graph, 0);
  /* The device may launch it, which nobody sees. */
  const bool shared = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
  return penstock_hold_touches(&call, PENSTOCK_PIN_GRAPH, shared);
}

penstock_hold* penstock_changed_graph(penstock_call* call, CUgraphExec exec) {
  penstock_touch_held(call, PENSTOCK_GRAPH, (uintptr_t)exec);
  return penstock_hold_touches(call, PENSTOCK_PIN_GRAPH, false);
}

/* ---- Launches and captures ------------------------------------------------------------------ */

void penstock_describe_graph(penstock_call* call, penstock_interposer* engine, CUstream stream,
                             CUgraphExec exec) {
  penstock_work_on(call, engine, PENSTOCK_WORK_GRAPH, stream);
  call->work.function = (uint64_t)(uintptr_t)exec;
  penstock_touch_held(call, PENSTOCK_GRAPH, (uintptr_t)exec);
}

CUresult penstock_after_capture_began(CUresult result) {
  if (result == CUDA_SUCCESS) atomic_fetch_add(&penstock_captures, 1);
  return result;
}

/* A capture that failed has ended as well.  One that ends unseen, with its stream, only makes later
 * work look whether it is being captured. */
CUresult penstock_after_capture_ended(CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    uint32_t open = atomic_load(&penstock_captures);
    while (open != 0 && !atomic_compare_exchange_weak(&penstock_captures, &open, open - 1)) {
    }
  }
  return result;
}
