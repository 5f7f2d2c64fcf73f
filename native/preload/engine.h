/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine behind the hooks: found, loaded and left alone as the process needs it.
 *
 * It is loaded from libpenstock.so at the first call that makes or uses a context.  Where it cannot
 * be had, and in the child of a process that had it, there is none, and every call goes to the
 * driver as it is.
 *
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_PRELOAD_ENGINE_H_
#define PENSTOCK_PRELOAD_ENGINE_H_

#include <stdbool.h>

#include "penstock/interpose.h"
#include "preload/driver.h"

/* NULL where there is none.  Loads it if nobody has tried. */
penstock_interposer* penstock_load_engine(void);

extern _Atomic(penstock_interposer*) penstock_loaded_engine;
extern _Atomic(int) penstock_engine_decided;

static inline penstock_interposer* penstock_engine(void) {
  penstock_interposer* const engine =
      atomic_load_explicit(&penstock_loaded_engine, memory_order_acquire);
  if (engine != NULL) return engine;
  if (atomic_load_explicit(&penstock_engine_decided, memory_order_acquire)) return NULL;
  return penstock_load_engine();
}

/* Whether an address may be the engine's: its ranges lie in the window, and between them may
 * others' memory, the host's too. */
static inline bool penstock_in_window(penstock_interposer* engine, uint64_t address) {
  const uint64_t begin = atomic_load_explicit(&engine->window_begin, memory_order_relaxed);
  const uint64_t end = atomic_load_explicit(&engine->window_end, memory_order_relaxed);
  return address - begin < end - begin;
}

/* The block of the engine's around an address, unless NULL; false: there is none. */
bool penstock_find_block(uint64_t address, penstock_block* block);

/* Pins an address if it may be the engine's: until penstock_unpin(*token), or with NULL until its
 * block is freed.  Else the call that needs it must fail with what this returns. */
CUresult penstock_pin(uint64_t address, int32_t reason, uint64_t* token);
void penstock_unpin(uint64_t token);

void* penstock_current_context(void);

/* Memory that is not the engine's is counted. */
CUresult penstock_after_foreign(CUresult result, size_t bytes);

/* Where this library lies, as it was loaded. */
const char* penstock_own_path(void);

/* Counted apart from the calls themselves. */
typedef struct {
  _Atomic(uint64_t) captured, announced, touches, opaque, unknown_layouts, engine_allocations,
      foreign_bytes;
} penstock_tally;
extern penstock_tally penstock_counts;

static inline void penstock_count(_Atomic(uint64_t)* counter, uint64_t more) {
  atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

#endif /* PENSTOCK_PRELOAD_ENGINE_H_ */
