/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "preload/engine.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload/settings.h"

_Atomic(penstock_interposer*) penstock_loaded_engine;
_Atomic(int) penstock_engine_decided;
penstock_tally penstock_counts;

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int loading;

typedef penstock_status (*interpose_function)(const penstock_real_driver*,
                                              const penstock_interpose_options*,
                                              penstock_interposer**);

const char* penstock_own_path(void) {
  Dl_info found;
  if (dladdr((const void*)&penstock_own_path, &found) == 0) return NULL;
  return found.dli_fname;
}

/* PENSTOCK_LIBRARY, else lib/libpenstock.so beside the folder that this file really lies in: it was
 * loaded through a link. */
static int library_path(char* path) {
  const char* const named = getenv("PENSTOCK_LIBRARY");
  if (named != NULL && *named != '\0') return snprintf(path, PATH_MAX, "%s", named) < PATH_MAX;
  char here[PATH_MAX];
  const char* const own = penstock_own_path();
  if (own == NULL || realpath(own, here) == NULL) return 0;
  for (int i = 0; i < 2; ++i) {
    char* const slash = strrchr(here, '/');
    if (slash == NULL) return 0;
    *slash = '\0';
  }
  return snprintf(path, PATH_MAX, "%s/lib/libpenstock.so", here) < PATH_MAX;
}

/* The handlers below exist in a process from its engine on, and not before. */
static void in_child(void) {
  atomic_store(&penstock_loaded_engine, NULL);
  atomic_store(&penstock_engine_decided, 1); /* another thread may have been loading it */
}

static uint64_t calls_of(int kind) {
  uint64_t sum = 0;
  for (int i = 0; i < PENSTOCK_HOOK_COUNT; ++i) {
    if (kind < 0 || penstock_hooks[i].kind == kind) sum += atomic_load(&penstock_hooks[i].calls);
  }
  return sum;
}

static void at_end(void) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  if (engine == NULL) return;
  char words[512] = "";
  const int paged = engine->summary == NULL ? 0 : engine->summary(words, sizeof(words));
  if (!paged && !penstock_summary_wanted()) return;
  const unsigned long long captured = atomic_load(&penstock_counts.captured);
  const unsigned long long opaque = atomic_load(&penstock_counts.opaque);
  penstock_say("%s%s%llu launches seen, %llu graph launches, %llu copies and fills%s%s",
               paged ? words : "nothing was paged", "; ",
               (unsigned long long)calls_of(PENSTOCK_LAUNCH),
               (unsigned long long)calls_of(PENSTOCK_GRAPH_LAUNCH),
               (unsigned long long)(calls_of(PENSTOCK_COPY) + calls_of(PENSTOCK_FILL)),
               captured != 0 ? " (some into graphs)" : "",
               opaque != 0 ? "; not all that they touch was seen" : "");
}

static penstock_interposer* load(void) {
  char path[PATH_MAX];
  if (!library_path(path)) {
    penstock_say("libpenstock.so was not found; nothing will be paged");
    return NULL;
  }
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  interpose_function interpose = NULL;
  if (library != NULL) *(void**)&interpose = dlsym(library, "penstock_interpose");
  if (interpose == NULL) {
    penstock_say("%s; nothing will be paged", dlerror());
    return NULL;
  }
  penstock_interpose_options options;
  penstock_read_settings(&options);
  const penstock_real_driver real = {
      .struct_size = sizeof(real),
      .version = PENSTOCK_INTERPOSE_VERSION,
      .library = penstock_real_library(),
      .get_proc_address = (int32_t(*)(const char*, void**, int32_t, uint64_t, int32_t*))(
          penstock_function)penstock_real_get_address()};
  penstock_interposer* engine = NULL;
  if (interpose(&real, &options, &engine) != PENSTOCK_OK || engine == NULL) {
    const char* (*reason)(void) = NULL;
    *(void**)&reason = dlsym(library, "penstock_last_error");
    penstock_say("%s; nothing will be paged", reason != NULL ? reason() : "the engine refused");
    return NULL;
  }
  if (penstock_is_late()) {
    penstock_say(
        "the NVIDIA driver was loaded before the proxy, so that calls may go past it: start the "
        "program with penstock run, or preload before anything else");
  }
  return engine;
}

penstock_interposer* penstock_load_engine(void) {
  if (loading) return NULL; /* the engine's own beginning has come back through a hook */
  loading = 1;
  pthread_mutex_lock(&load_lock);
  if (!atomic_load(&penstock_engine_decided)) {
    pthread_atfork(NULL, NULL, in_child);
    penstock_interposer* const engine = load();
    if (engine != NULL) atexit(at_end);
    atomic_store(&penstock_loaded_engine, engine);
    atomic_store(&penstock_engine_decided, 1);
  }
  pthread_mutex_unlock(&load_lock);
  loading = 0;
  return atomic_load(&penstock_loaded_engine);
}

bool penstock_find_block(uint64_t address, penstock_block* block) {
  penstock_interposer* const engine = penstock_engine();
  if (engine == NULL || !penstock_in_window(engine, address)) return false;
  penstock_block unasked;
  if (block == NULL) block = &unasked;
  *block = (penstock_block){.struct_size = sizeof(*block)};
  return engine->block_of(address, block) == CUDA_SUCCESS;
}

CUresult penstock_pin(uint64_t address, int32_t reason, uint64_t* token) {
  penstock_interposer* const engine = penstock_engine();
  if (token != NULL) *token = 0;
  if (engine == NULL || !penstock_in_window(engine, address)) return CUDA_SUCCESS;
  return engine->pin(address, reason, token);
}

void penstock_unpin(uint64_t token) {
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  if (engine != NULL && token != 0) engine->unpin(token);
}

void* penstock_current_context(void) {
  CUcontext context = NULL;
  return PENSTOCK_ASK(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
}

/* ---- Exported beside the driver's names; interpose.h declares them ------------------------- */

#define PENSTOCK_EXPORTED __attribute__((visibility("default")))

PENSTOCK_EXPORTED void* penstock_proxy_real_library(void) { return penstock_real_library(); }

PENSTOCK_EXPORTED uint64_t penstock_proxy_entry_calls(const char* exported) {
  for (int i = 0; i < PENSTOCK_HOOK_COUNT; ++i) {
    if (strcmp(penstock_hooks[i].exported, exported) == 0) {
      return atomic_load(&penstock_hooks[i].calls);
    }
  }
  return 0;
}

PENSTOCK_EXPORTED void penstock_proxy_get_counters(penstock_proxy_counters* counters) {
  const penstock_proxy_counters all = {
      .struct_size = sizeof(all),
      .calls = calls_of(-1),
      .launches = calls_of(PENSTOCK_LAUNCH),
      .graph_launches = calls_of(PENSTOCK_GRAPH_LAUNCH),
      .captured = atomic_load(&penstock_counts.captured),
      .copies = calls_of(PENSTOCK_COPY),
      .fills = calls_of(PENSTOCK_FILL),
      .announced = atomic_load(&penstock_counts.announced),
      .touches = atomic_load(&penstock_counts.touches),
      .opaque = atomic_load(&penstock_counts.opaque),
      .unknown_layouts = atomic_load(&penstock_counts.unknown_layouts),
      .allocations = calls_of(PENSTOCK_ALLOCATE),
      .engine_allocations = atomic_load(&penstock_counts.engine_allocations),
      .foreign_bytes = atomic_load(&penstock_counts.foreign_bytes),
      .unknown_forms = penstock_unknown_forms(),
      .late = (uint64_t)penstock_is_late()};
  const uint64_t known = counters->struct_size < sizeof(all) ? counters->struct_size : sizeof(all);
  memcpy((char*)counters + sizeof(uint64_t), (const char*)&all + sizeof(uint64_t),
         known < sizeof(uint64_t) ? 0 : known - sizeof(uint64_t));
}
