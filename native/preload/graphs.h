/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs, and what they touch: the parts of hooks that rows of hooks.def name.
 * Thread rule: as work.h.
 */
#ifndef PENSTOCK_PRELOAD_GRAPHS_H_
#define PENSTOCK_PRELOAD_GRAPHS_H_

#include "preload/pins.h"

/* A hold on what a graph touches, or an executable one with the touches of `call` added; ends the
 * call.  NULL: as penstock_hold_touches(). */
penstock_hold* penstock_read_graph(penstock_interposer* engine, CUgraph graph,
                                   unsigned long long flags);
penstock_hold* penstock_changed_graph(penstock_call* call, CUgraphExec exec);

/* What a node, or all of a graph, would touch; `depth` graphs are around it. */
void penstock_touch_launch(penstock_call* call, CUfunction function, CUkernel kernel,
                           void** parameters, void** extra);
void penstock_touch_node(penstock_call* call, const CUgraphNodeParams* values, int depth);
void penstock_touch_graph(penstock_call* call, CUgraph graph, int depth);

void penstock_describe_graph(penstock_call* call, penstock_interposer* engine, CUstream stream,
                             CUgraphExec exec);
CUresult penstock_after_capture_began(CUresult result);
CUresult penstock_after_capture_ended(CUresult result);

#endif /* PENSTOCK_PRELOAD_GRAPHS_H_ */
