/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library exports under the driver's names: one function for each row of hooks.def, which
 * counts the call and goes to the hook's body; and the table of them.  Nothing else is here.
 */
#include "preload/driver.h"

static _Atomic(int) started;

static inline penstock_hook* enter(enum penstock_hook_index index) {
  if (!atomic_load_explicit(&started, memory_order_acquire)) {
    penstock_start();
    atomic_store_explicit(&started, 1, memory_order_release);
  }
  penstock_hook* const hook = &penstock_hooks[index];
  atomic_fetch_add_explicit(&hook->calls, 1, memory_order_relaxed);
  return hook;
}

/* The exported name is an alias, so that its address here is ours whatever else the process has
 * loaded under that name. */
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  static CUresult entry_##exported parameters {                                         \
    penstock_hook* const self = enter(PENSTOCK_HOOK_##exported);                        \
    if (self->real == NULL) return CUDA_ERROR_NOT_SUPPORTED;                            \
    return penstock_on_##hook(self, PENSTOCK_LIST arguments);                           \
  }                                                                                     \
  extern CUresult exported parameters                                                   \
      __attribute__((alias("entry_" #exported), visibility("default")));
#include "preload/hooks.def"
#undef PENSTOCK_HOOK

penstock_hook penstock_hooks[PENSTOCK_HOOK_COUNT] = {
#define PENSTOCK_HOOK(exported_name, hook, base_name, since_version, stream, kind_name, \
                      parameters, arguments)                                            \
  [PENSTOCK_HOOK_##exported_name] = {.entry = (penstock_function)entry_##exported_name, \
                                     .exported = #exported_name,                        \
                                     .base = base_name,                                 \
                                     .since = since_version,                            \
                                     .default_stream = PENSTOCK_##stream,               \
                                     .kind = PENSTOCK_##kind_name},
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
};
