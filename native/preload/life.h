/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts and streams that begin and end: the parts of hooks that rows of hooks.def name.
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_PRELOAD_LIFE_H_
#define PENSTOCK_PRELOAD_LIFE_H_

#include "preload/engine.h"

/* The first context brings the engine. */
CUresult penstock_after_context(CUresult result);
/* What is about to go is said before it goes. */
void penstock_context_ends(CUcontext context);
void penstock_primary_ends(CUdevice device);
void penstock_green_context_ends(CUgreenCtx green);
void penstock_stream_ends(CUstream stream);

#endif /* PENSTOCK_PRELOAD_LIFE_H_ */
