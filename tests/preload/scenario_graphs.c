/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: captured, built by hand, nested, cloned, updated, changed; what they touch is announced
 * at each launch and pinned until they end.
 */
#include "check.h"

enum { COUNT = 16 };

typedef struct {
  CUdeviceptr a, b, out;
  int n;
  void* list[4];
} addition;

static void make_addition(session* with, addition* made) {
  *made = (addition){.n = COUNT};
  made->a = new_block(with, COUNT * 4);
  made->b = new_block(with, COUNT * 4);
  made->out = new_block(with, COUNT * 4);
  made->list[0] = &made->out;
  made->list[1] = &made->a;
  made->list[2] = &made->b;
  made->list[3] = &made->n;
  CHECK(with->cu.cuMemsetD32_v2(made->a, 0x3f800000, COUNT) == 0); /* 1.0 */
  CHECK(with->cu.cuMemsetD32_v2(made->b, 0x40000000, COUNT) == 0); /* 2.0 */
}

static float result_of(session* with, const addition* of) {
  float value = -1;
  with->engine->read(of->out, &value, sizeof(value));
  return value;
}

static CUgraph capture(session* with, const addition* what) {
  CUgraph graph = NULL;
  CHECK(with->cu.cuStreamBeginCapture_v2(with->stream, 0) == 0);
  with->engine->clear();
  CHECK(with->cu.cuLaunchKernel(kernel_named("add"), 1, 1, 1, 1, 1, 1, 0, with->stream,
                                (void**)what->list, NULL) == 0);
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->captured && event->count == 3);
  /* Another stream is not being captured. */
  CHECK(with->cu.cuMemsetD8_v2(what->out, 0, 4) == 0);
  CHECK(!last_event(with, DOUBLE_BEGIN)->captured);
  CHECK(with->cu.cuStreamEndCapture(with->stream, &graph) == 0);
  CHECK(with->cu.cuMemsetD8Async(what->out, 0, 4, with->stream) == 0);
  CHECK(!last_event(with, DOUBLE_BEGIN)->captured);
  return graph;
}

static void launch_and_check(session* with, CUgraphExec exec, const addition* what) {
  CHECK(with->cu.cuMemsetD8_v2(what->out, 0, COUNT * 4) == 0);
  with->engine->clear();
  CHECK(with->cu.cuGraphLaunch(exec, with->stream) == 0);
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->kind == PENSTOCK_WORK_GRAPH && event->function == (uintptr_t)exec);
  CHECK(event->stream == (uintptr_t)with->stream && !event->opaque);
  CHECK(touches_address(event, what->a) && touches_address(event, what->out));
  CHECK(result_of(with, what) == 3);
  CHECK(with->engine->pins(what->a) > 0 && with->engine->pins(what->out) > 0);
}

static void captured(session* with) {
  driver_api* const cu = &with->cu;
  addition first;
  addition second;
  CUgraphExec exec = NULL;
  make_addition(with, &first);
  make_addition(with, &second);
  const CUgraph graph = capture(with, &first);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
  launch_and_check(with, exec, &first);
  /* Another graph in its place: the old addresses are let go. */
  const CUgraph other = capture(with, &second);
  CHECK(cu->cuGraphExecUpdate_v2(exec, other, NULL) == 0);
  launch_and_check(with, exec, &second);
  CHECK(with->engine->pins(first.a) == 0);
  /* One node changed: its addresses are added. */
  const CUDA_KERNEL_NODE_PARAMS_v2 values = {.func = kernel_named("add"),
                                             .kernelParams = first.list};
  CHECK(cu->cuGraphExecKernelNodeSetParams_v2(exec, NULL, &values) == 0);
  launch_and_check(with, exec, &first);
  CHECK(with->engine->pins(second.a) > 0);
  /* An update that fails changes nothing. */
  ((fake_fail_function)driver_symbol("fake_fail"))("cuGraphExecUpdate_v2", 910, 1);
  CHECK(cu->cuGraphExecUpdate_v2(exec, other, NULL) == 910);
  launch_and_check(with, exec, &first);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
  CHECK(with->engine->pins(first.a) == 0 && with->engine->pins(second.a) == 0);
  /* One that was made unseen may touch anything. */
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cu->cuGraphLaunch((CUgraphExec)with, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(last_event(with, DOUBLE_BEGIN)->opaque);
}

/* No room for one of its blocks: the graph is not made or changed, and nothing stays pinned. */
static void refused(session* with) {
  driver_api* const cu = &with->cu;
  addition first;
  addition second;
  CUgraphExec exec = NULL;
  make_addition(with, &first);
  make_addition(with, &second);
  const CUgraph graph = capture(with, &first);
  const CUgraph other = capture(with, &second);
  with->engine->refuse_pin(3);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(exec == NULL); /* the driver was not asked */
  CHECK(with->engine->pins(first.a) == 0 && with->engine->pins(first.b) == 0);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
  with->engine->refuse_pin(2);
  CHECK(cu->cuGraphExecUpdate_v2(exec, other, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(with->engine->pins(second.a) == 0 && with->engine->pins(second.b) == 0);
  launch_and_check(with, exec, &first);
  /* One that cannot be destroyed is still there. */
  ((fake_fail_function)driver_symbol("fake_fail"))("cuGraphExecDestroy", 1, 1);
  CHECK(cu->cuGraphExecDestroy(exec) == 1);
  launch_and_check(with, exec, &first);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
  CHECK(with->engine->pins(first.a) == 0);
}

/* Another graph gets the handle of one that is being destroyed; one of nothing at all. */
static session* making;
static CUgraph to_make;
static CUgraphExec made;
static void make_meanwhile(void) {
  CHECK(making->cu.cuGraphInstantiateWithFlags(&made, to_make, 0) == 0);
}
static void handles_again(session* with) {
  driver_api* const cu = &with->cu;
  addition first;
  addition second;
  CUgraphExec exec = NULL;
  make_addition(with, &first);
  make_addition(with, &second);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, capture(with, &first), 0) == 0);
  making = with;
  to_make = capture(with, &second);
  ((fake_meanwhile_function)driver_symbol("fake_meanwhile"))(make_meanwhile);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
  launch_and_check(with, made, &second); /* not opaque: it is known */
  CHECK(with->engine->pins(first.a) == 0);
  CHECK(cu->cuGraphExecDestroy(made) == 0);
  CHECK(with->engine->pins(second.a) == 0);
  CHECK(DRIVER(cuGraphCreate)(&to_make, 0) == 0);
  make_meanwhile();
  CHECK(cu->cuGraphLaunch(made, with->stream) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->count == 0 && !last_event(with, DOUBLE_BEGIN)->opaque);
  CHECK(cu->cuGraphExecDestroy(made) == 0);
}

static CUgraph by_hand(session* with, const addition* what, CUdeviceptr zeroed) {
  CUgraph inner = NULL;
  CUgraph outer = NULL;
  CUgraph clone = NULL;
  CUgraphNode node = NULL;
  CHECK(DRIVER(cuGraphCreate)(&inner, 0) == 0 && DRIVER(cuGraphCreate)(&outer, 0) == 0);
  const CUDA_KERNEL_NODE_PARAMS_v2 values = {.kern = (CUkernel)kernel_named("add_kernel_handle"),
                                             .kernelParams = (void**)what->list};
  CHECK(DRIVER(cuGraphAddKernelNode_v2)(&node, inner, NULL, 0, &values) == 0);
  const CUDA_MEMSET_NODE_PARAMS_v1 fill = {
      .dst = zeroed, .elementSize = 4, .width = 8, .height = 1, .value = 5};
  CHECK(DRIVER(cuGraphAddMemsetNode)(&node, outer, NULL, 0, &fill, NULL) == 0);
  const CUDA_MEMCPY3D copy = {.srcMemoryType = 2,
                              .srcDevice = zeroed,
                              .dstMemoryType = 2,
                              .dstDevice = zeroed + 64,
                              .WidthInBytes = 32,
                              .Height = 1,
                              .Depth = 1};
  CHECK(DRIVER(cuGraphAddMemcpyNode)(&node, outer, NULL, 0, &copy, NULL) == 0);
  CHECK(DRIVER(cuGraphAddChildGraphNode)(&node, outer, NULL, 0, inner) == 0);
  CHECK(DRIVER(cuGraphClone)(&clone, outer) == 0);
  (void)with;
  return clone;
}

static void handmade(session* with) {
  driver_api* const cu = &with->cu;
  addition sum;
  make_addition(with, &sum);
  const CUdeviceptr zeroed = new_block(with, 128);
  const CUgraph graph = by_hand(with, &sum, zeroed);
  CUgraphExec exec = NULL;
  CUDA_GRAPH_INSTANTIATE_PARAMS options = {0};
  CHECK(cu->cuGraphInstantiateWithParams(&exec, graph, &options) == 0);
  launch_and_check(with, exec, &sum);
  const double_event* event = last_event(with, DOUBLE_BEGIN);
  CHECK(touches_address(event, zeroed) && touches_address(event, zeroed + 64));
  CHECK(event->count == 5);
  for (uint32_t i = 0; i < event->count; ++i) {
    if (event->touches[i].address != zeroed) continue;
    CHECK(event->touches[i].bytes == 32); /* filled, then read */
    CHECK((event->touches[i].access & ~(uint32_t)PENSTOCK_ACCESS_GAPS) ==
          (PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE));
  }
  uint32_t word = 0;
  with->engine->read(zeroed + 64 + 28, &word, sizeof(word));
  CHECK(word == 5);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
  CHECK(with->engine->pins(zeroed) == 0);
  /* Where the driver does not tell of a conditional body the rest is known, and it is said that
   * this is not all. */
  CUgraphNode node = NULL;
  CHECK(DRIVER(cuGraphAddConditionalNode)(&node, graph, NULL) == 0);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) ==
        0);
  CHECK(last_event(with, DOUBLE_PIN)->what == DOUBLE_PIN);
  CHECK(with->engine->pins(zeroed) >= 2); /* once more, since the device may launch it */
  CHECK(cu->cuGraphLaunch(exec, with->stream) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->opaque);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
  CHECK(with->engine->pins(zeroed) >= 1);
}

/* What only cuGraphNodeGetParams tells of. */
static void told_by_newer_drivers(session* with) {
  driver_api* const cu = &with->cu;
  addition sum;
  make_addition(with, &sum);
  const CUdeviceptr from = new_block(with, 128);
  const CUdeviceptr to = new_block(with, 128);
  CUgraph inner = NULL;
  CUgraph graph = NULL;
  CUgraphNode node = NULL;
  CUgraphExec exec = NULL;
  CHECK(DRIVER(cuGraphCreate)(&inner, 0) == 0 && DRIVER(cuGraphCreate)(&graph, 0) == 0);
  CHECK(DRIVER(cuGraphAddMemcpyBatchNode)(&node, inner, to, from, 100) == 0);
  CHECK(DRIVER(cuGraphAddConditionalNode)(&node, graph, inner) == 0);
  CHECK(DRIVER(cuGraphAddConditionalNode)(&node, graph, capture(with, &sum)) == 0);
  CHECK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
  launch_and_check(with, exec, &sum);
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(touches_address(event, from) && touches_address(event, to));
  CHECK(with->engine->pins(from) == 1 && with->engine->pins(to) == 1);
  CHECK(cu->cuGraphExecDestroy(exec) == 0);
}

/* A graph's nodes recorded anew are captured work like any other. */
static void recaptured(session* with) {
  addition first;
  addition second;
  make_addition(with, &first);
  make_addition(with, &second);
  CUgraph graph = capture(with, &first);
  CUgraphExec exec = NULL;
  CHECK(with->cu.cuStreamBeginRecaptureToGraph(with->stream, 0, graph, NULL, NULL) == 0);
  CHECK(with->cu.cuLaunchKernel(kernel_named("add"), 1, 1, 1, 1, 1, 1, 0, with->stream, second.list,
                                NULL) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->captured);
  CHECK(with->cu.cuStreamEndCapture(with->stream, &graph) == 0);
  CHECK(with->cu.cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
  launch_and_check(with, exec, &second);
  CHECK(with->cu.cuGraphExecDestroy(exec) == 0);
}

void graphs_scenario(session* with) {
  with->engine->activate(1);
  captured(with);
  refused(with);
  handles_again(with);
  handmade(with);
  told_by_newer_drivers(with);
  recaptured(with);
  /* With everything resident nothing is announced, but what a graph touches is learned. */
  with->engine->activate(0);
  addition sum;
  make_addition(with, &sum);
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CHECK(with->cu.cuStreamBeginCapture_v2(with->stream, 0) == 0);
  CHECK(with->cu.cuLaunchKernel(kernel_named("add"), 1, 1, 1, 1, 1, 1, 0, with->stream, sum.list,
                                NULL) == 0);
  CHECK(with->cu.cuStreamEndCapture(with->stream, &graph) == 0);
  CHECK(with->cu.cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
  with->engine->clear();
  CHECK(with->cu.cuGraphLaunch(exec, with->stream) == 0);
  CHECK(count_events(with, DOUBLE_BEGIN) == 0);
  with->engine->activate(1);
  launch_and_check(with, exec, &sum);
  with->engine->activate(0);
}
