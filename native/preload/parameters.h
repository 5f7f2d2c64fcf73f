/* SPDX-License-Identifier: Apache-2.0
 *
 * The addresses in a kernel's parameters.
 *
 * Where each parameter lies and how long it is, the driver tells once for each kernel.  Every
 * 8-byte aligned word of every parameter is held against the engine's window, so that structs by
 * value, tables of pointers and tensor maps are seen as well as plain pointers.
 *
 * Thread rule: any thread; a lookup of a kernel that was seen before takes no lock.
 */
#ifndef PENSTOCK_PRELOAD_PARAMETERS_H_
#define PENSTOCK_PRELOAD_PARAMETERS_H_

#include "preload/work.h"

/* Adds the addresses found; false where the driver does not describe the kernel. */
bool penstock_gather(penstock_touches* touches, penstock_interposer* engine, CUfunction function,
                     void** parameters, void** extra);
/* The same for kernels of one name and one layout of parameters, whatever their handles; never 0.
 * Where the driver does not tell names (before CUDA 12.3): by handle, until code is unloaded. */
uint64_t penstock_kernel_identity(CUfunction function);
/* Adds the addresses found in `bytes` of packed memory, as held if that is on its way to `to`. */
void penstock_scan(penstock_touches* touches, penstock_interposer* engine, const void* memory,
                   size_t bytes, uint64_t to);
/* A launch of it, and one of the forms from before CUDA 4.0. */
void penstock_describe_kernel(penstock_call* call, penstock_interposer* engine, CUstream stream,
                              CUfunction function, void** parameters, void** extra);
void penstock_describe_old(penstock_call* call, penstock_interposer* engine, CUstream stream,
                           CUfunction function);
/* Code is about to go: a later kernel may get the handle of one of today's. */
void penstock_forget_kernels(void);

#endif /* PENSTOCK_PRELOAD_PARAMETERS_H_ */
