/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of hooks and the real driver behind them.
 *
 * Every entry point of hooks.def is a `penstock_hook`; its exported function counts the call and
 * does what the row says, or goes to penstock_on_NAME(), which other files define.  The table is
 * filled at the first call of any of them, not when the library is loaded: a process that makes no
 * call of the driver runs nothing of this.
 *
 * Thread rule: any thread; `real` is constant once a body runs.
 */
#ifndef PENSTOCK_PRELOAD_DRIVER_H_
#define PENSTOCK_PRELOAD_DRIVER_H_

#include <stdatomic.h>
#include <stdint.h>

#include "preload/cuda_abi.h"

/* Which default stream a stream of 0 is; the values are CUDA's own handles for them. */
enum { PENSTOCK_NO_STREAM = 0, PENSTOCK_LEGACY = 1, PENSTOCK_PER_THREAD = 2 };

enum penstock_kind {
  PENSTOCK_RESOLVE,
  PENSTOCK_LIFE,
  PENSTOCK_QUERY,
  PENSTOCK_ALLOCATE,
  PENSTOCK_FOREIGN,
  PENSTOCK_TAKE,
  PENSTOCK_RELEASE,
  PENSTOCK_PIN,
  PENSTOCK_LAUNCH,
  PENSTOCK_COPY,
  PENSTOCK_FILL,
  PENSTOCK_VALUE,
  PENSTOCK_CAPTURE,
  PENSTOCK_GRAPH,
  PENSTOCK_GRAPH_LAUNCH
};

typedef void (*penstock_function)(void);

/* A cache line each, since every call counts. */
typedef struct {
  _Alignas(64) penstock_function real; /* NULL: this driver has no such function */
  penstock_function real_by_symbol;    /* what dlsym() finds, in case it is another address */
  penstock_function entry;             /* ours, to be handed out instead */
  const char* exported;
  const char* base;
  int since;
  short default_stream;
  short kind;
  _Atomic(uint64_t) calls;
} penstock_hook;

enum penstock_hook_index {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  PENSTOCK_HOOK_##exported,
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
  PENSTOCK_HOOK_COUNT
};

extern penstock_hook penstock_hooks[PENSTOCK_HOOK_COUNT];

/* The type of each entry point, and the body of each hook that has one of its own. */
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  typedef CUresult(*penstock_type_##exported) parameters;                               \
  CUresult penstock_on_##hook(penstock_hook* self, PENSTOCK_LIST parameters);
#include "preload/hooks.def"
#undef PENSTOCK_HOOK

/* Within a body: the driver's own function, by the exported name that has its type. */
#define PENSTOCK_REAL(exported) ((penstock_type_##exported)self->real)

/* What the proxy itself calls; NULL where the driver has no such function. */
typedef struct {
#define PENSTOCK_USE(exported, base, since, parameters) CUresult(*exported) parameters;
#include "preload/uses.def"
#undef PENSTOCK_USE
} penstock_uses;
extern penstock_uses penstock_driver;
#define PENSTOCK_ASK(function, ...)                            \
  (penstock_driver.function == NULL ? CUDA_ERROR_NOT_SUPPORTED \
                                    : penstock_driver.function(__VA_ARGS__))

typedef CUresult (*penstock_get_address)(const char*, void**, int, cuuint64_t,
                                         CUdriverProcAddressQueryResult*);

/* Find the driver and fill the tables, once. */
void penstock_start(void);
void* penstock_real_library(void);
penstock_get_address penstock_real_get_address(void);
/* What the driver answered to a question for an entry point, with ours in the place of its own. */
CUresult penstock_after_asking(CUresult result, const char* name, void** function, int version,
                               cuuint64_t flags);
/* Whether the driver was loaded before this library, so that calls may go past it. */
int penstock_is_late(void);
/* Entry points handed out as they are, because they are newer than the table. */
uint64_t penstock_unknown_forms(void);

static inline CUstream penstock_stream(const penstock_hook* hook, CUstream stream) {
  return stream != NULL ? stream : (CUstream)(uintptr_t)hook->default_stream;
}

#endif /* PENSTOCK_PRELOAD_DRIVER_H_ */
