/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels on their way to a stream.  While everything is resident a launch costs a few additions
 * and a look at the engine's table; else its parameters are gathered and it is announced.
 */
#include <stdlib.h>

#include "preload/parameters.h"

void penstock_describe_kernel(penstock_call* call, penstock_interposer* engine, CUstream stream,
                              CUfunction function, void** parameters, void** extra) {
  penstock_work_on(call, engine, PENSTOCK_WORK_KERNEL, stream);
  call->work.function = penstock_kernel_identity(function);
  if (!penstock_gather(&call->touches, engine, function, parameters, extra)) call->work.opaque = 1;
}

CUresult penstock_on_cuLaunchKernelEx(penstock_hook* self, const CUlaunchConfig* config,
                                      CUfunction function, void** parameters, void** extra) {
  if (config == NULL) return PENSTOCK_REAL(cuLaunchKernelEx)(config, function, parameters, extra);
  PENSTOCK_DO_LAUNCH(penstock_describe_kernel(&call, engine, penstock_stream(self, config->hStream),
                                              function, parameters, extra),
                     PENSTOCK_REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

/* One call, a kernel for each of several devices: all are announced before any is launched. */
CUresult penstock_on_cuLaunchCooperativeKernelMultiDevice(penstock_hook* self,
                                                          CUDA_LAUNCH_PARAMS* launches,
                                                          unsigned int count, unsigned int flags) {
  const penstock_type_cuLaunchCooperativeKernelMultiDevice real =
      PENSTOCK_REAL(cuLaunchCooperativeKernelMultiDevice);
  penstock_interposer* const engine = penstock_engine();
  if (engine == NULL || launches == NULL) return real(launches, count, flags);
  if (penstock_pass(engine)) return penstock_leave(engine, real(launches, count, flags));
  penstock_call* const calls = malloc(count * sizeof(*calls));
  if (calls == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  unsigned int begun = 0;
  CUresult result = CUDA_SUCCESS;
  for (; begun < count; ++begun) {
    const CUDA_LAUNCH_PARAMS* const each = &launches[begun];
    penstock_describe_kernel(&calls[begun], engine, penstock_stream(self, each->hStream),
                             each->function, each->kernelParams, NULL);
    if (!penstock_begin(&calls[begun])) {
      result = calls[begun].refusal;
      break;
    }
  }
  if (result == CUDA_SUCCESS) result = real(launches, count, flags);
  while (begun != 0) penstock_end(&calls[--begun], result);
  free(calls);
  return result;
}

/* The forms from before CUDA 4.0: parameters were set one by one before, out of our sight. */
void penstock_describe_old(penstock_call* call, penstock_interposer* engine, CUstream stream,
                           CUfunction function) {
  penstock_work_on(call, engine, PENSTOCK_WORK_KERNEL, stream);
  call->work.function = penstock_kernel_identity(function);
  call->work.opaque = 1;
}
