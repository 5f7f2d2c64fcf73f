/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's entry points as a program got hold of them: one pointer for each row of hooks.def.
 * Real stacks do it in the ways below.
 */
#ifndef PENSTOCK_TESTS_API_H_
#define PENSTOCK_TESTS_API_H_

#include "engine_double.h"
#include "fake_driver.h"

typedef struct {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  CUresult(*exported) parameters;
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
} driver_api;

/* linked, dlopen, name (libcuda.so), absolute (FAKE_DRIVER), v1, v2, default, per-thread, runtime
 */
void load_api(const char* way, driver_api* api);

/* What is in the driver alone, found through the handle that the program has. */
void* driver_symbol(const char* name);
/* The engine double in this process; NULL where the proxy has not loaded it. */
const double_control* double_engine(void);

#endif /* PENSTOCK_TESTS_API_H_ */
