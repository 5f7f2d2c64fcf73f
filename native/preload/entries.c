/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library exports under the driver's names: one function for each row of hooks.def, which
 * counts the call and does what the row says; and the table of them.
 */
#include "preload/copies.h"
#include "preload/graphs.h"
#include "preload/life.h"
#include "preload/parameters.h"
#include "preload/pins.h"

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

/* ---- The words of a row's body ----------------------------------------------------------------
 * Each becomes the end of the entry's function; `own_call` is that of penstock_on_HOOK(), and
 * `real_call` the driver's function with the caller's arguments. */

#define PENSTOCK_BODY_OWN(own_call, real_call, kind, none) return own_call;

/* WORK, stream, what, ...: a copy, a fill or a word, described by penstock_touch_WHAT(). */
#define PENSTOCK_BODY_WORK(own_call, real_call, kind, stream, what, ...)                    \
  PENSTOCK_DO_WORK(PENSTOCK_WORK_##kind, stream, penstock_touch_##what(&call, __VA_ARGS__), \
                   real_call);

/* LAUNCH, stream, what, ...: described by penstock_describe_WHAT(). */
#define PENSTOCK_BODY_LAUNCH(own_call, real_call, kind, stream, what, ...)                 \
  PENSTOCK_DO_LAUNCH(                                                                      \
      penstock_describe_##what(&call, engine, penstock_stream(self, stream), __VA_ARGS__), \
      real_call);

/* MAKE, handle, hold: an object is made, and `hold` kept until it is destroyed; DESTROY, handle.
 * CHANGE, new, what, ...: a node of an executable graph gets the new values, described by
 * penstock_touch_WHAT(). */
#define PENSTOCK_BODY_MAKE(own_call, real_call, kind, handle, hold) \
  penstock_interposer* const engine = penstock_engine();            \
  if (engine == NULL) return real_call;                             \
  penstock_hold* const made = hold;                                 \
  return made == NULL                                               \
             ? CUDA_ERROR_OUT_OF_MEMORY                             \
             : penstock_settle(made, PENSTOCK_WITH_ROOM(0, real_call), PENSTOCK_##kind, handle);
#define PENSTOCK_BODY_DESTROY(own_call, real_call, kind, handle)                         \
  penstock_hold* const taken = penstock_take_held(PENSTOCK_##kind, (uintptr_t)(handle)); \
  return penstock_destroyed(taken, real_call);
#define PENSTOCK_BODY_CHANGE(own_call, real_call, kind, new, what, ...) \
  penstock_interposer* const engine = penstock_engine();                \
  if (engine == NULL || new == NULL) return real_call;                  \
  penstock_call call;                                                   \
  penstock_work_on(&call, engine, PENSTOCK_WORK_GRAPH, NULL);           \
  penstock_touch_##what(&call, __VA_ARGS__);                            \
  penstock_hold* const made = penstock_changed_graph(&call, exec);      \
  return made == NULL                                                   \
             ? CUDA_ERROR_OUT_OF_MEMORY                                 \
             : penstock_settle(made, PENSTOCK_WITH_ROOM(0, real_call), PENSTOCK_##kind, &exec);

/* PIN, address, reason: its block stays until it is freed; a call that cannot have that fails.
 * SHARE, address, bytes: all blocks that reach into the range. */
#define PENSTOCK_BODY_PIN(own_call, real_call, kind, address, reason)                    \
  const CUresult pinned = penstock_pin((uintptr_t)address, PENSTOCK_PIN_##reason, NULL); \
  return pinned != CUDA_SUCCESS ? pinned : real_call;

#define PENSTOCK_BODY_SHARE(own_call, real_call, kind, address, bytes) \
  const CUresult pinned = penstock_pin_range(address, bytes);          \
  return pinned != CUDA_SUCCESS ? pinned : real_call;

/* TAKE: it takes device memory of its own, or may.  FIRST, statement: and then the call.  THEN,
 * function, ...: what it makes of the call's result. */
#define PENSTOCK_BODY_TAKE(own_call, real_call, kind, none) return PENSTOCK_WITH_ROOM(0, real_call);
#define PENSTOCK_BODY_FIRST(own_call, real_call, kind, statement) \
  statement;                                                      \
  return real_call;
#define PENSTOCK_BODY_THEN(own_call, real_call, kind, function, ...) \
  return function(PENSTOCK_WITH_ROOM(0, real_call) __VA_OPT__(, ) __VA_ARGS__);

#define PENSTOCK_BODY(...) PENSTOCK_BODY_OF(__VA_ARGS__)
#define PENSTOCK_BODY_OF(own_call, real_call, kind, verb, ...) \
  PENSTOCK_BODY_##verb(own_call, real_call, kind, __VA_ARGS__)

/* The exported name is an alias, so that its address here is ours whatever else the process has
 * loaded under that name. */
#define PENSTOCK_HOOK_AND_BODY(exported, hook, base, since, stream, kind, body, parameters, \
                               arguments)                                                   \
  static CUresult entry_##exported parameters {                                             \
    penstock_hook* const self = enter(PENSTOCK_HOOK_##exported);                            \
    if (self->real == NULL) return CUDA_ERROR_NOT_SUPPORTED;                                \
    PENSTOCK_BODY(penstock_on_##hook(self, PENSTOCK_LIST arguments),                        \
                  (PENSTOCK_REAL(exported) arguments), kind, PENSTOCK_LIST body)            \
  }                                                                                         \
  extern CUresult exported parameters                                                       \
      __attribute__((alias("entry_" #exported), visibility("default")));
#include "preload/hooks.def"

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
