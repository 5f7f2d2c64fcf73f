/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the real driver and what each hook stands in front of, and answers cuGetProcAddress.
 *
 * The driver is a dependency of this library under the name libcuda_real.so.1, a link beside it
 * that `penstock run` makes; so the dynamic loader itself finds every function that has no hook.
 * A question for an entry point goes to the real resolver first.  What it hands out is replaced
 * only if it is, address for address, a function that a hook stands in front of: forms older or
 * newer than those of hooks.def pass unchanged, whatever their name.
 */
#define _GNU_SOURCE
#include "preload/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static const char kRealName[] = "libcuda_real.so.1";

enum { kFlagLegacy = 1, kFlagPerThread = 2 };

static struct {
  pthread_mutex_t lock;
  int done;
  void* library;
  penstock_get_address get_address;
  int late;
  _Atomic(uint64_t) unknown_forms;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local int starting;

penstock_uses penstock_driver;

static penstock_function ask(const char* base, int since, int default_stream) {
  const cuuint64_t flags = default_stream == PENSTOCK_PER_THREAD ? kFlagPerThread : kFlagLegacy;
  void* found = NULL;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  CUdriverProcAddressQueryResult status = 0;
  if (state.get_address != NULL) result = state.get_address(base, &found, since, flags, &status);
  return result == CUDA_SUCCESS ? (penstock_function)found : NULL;
}

static penstock_function symbol(const char* exported) {
  return state.library == NULL ? NULL : (penstock_function)dlsym(state.library, exported);
}

static penstock_function resolve(const char* exported, const char* base, int since, int stream) {
  const penstock_function found = ask(base, since, stream);
  return found != NULL ? found : symbol(exported);
}

/* A driver whose symbols are not bound within itself hands out those that the program would find.
 */
static bool is_ours(penstock_function function) {
  for (const penstock_hook* hook = penstock_hooks; hook < penstock_hooks + PENSTOCK_HOOK_COUNT;
       ++hook) {
    if (hook->entry == function) return true;
  }
  return false;
}

/* Libraries are listed in the order in which they were loaded. */
static int look_at_order(struct dl_phdr_info* library, size_t size, void* seen_ourselves) {
  (void)size;
  const uintptr_t here = (uintptr_t)&look_at_order;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &library->dlpi_phdr[i];
    if (part->p_type != PT_LOAD) continue;
    const uintptr_t begin = library->dlpi_addr + part->p_vaddr;
    if (here >= begin && here - begin < part->p_memsz) *(int*)seen_ourselves = 1;
  }
  const char* const slash = library->dlpi_name == NULL ? NULL : strrchr(library->dlpi_name, '/');
  if (slash == NULL || *(int*)seen_ourselves) return *(int*)seen_ourselves;
  state.late |= strncmp(slash + 1, "libcuda.so", strlen("libcuda.so")) == 0;
  return 0;
}

static void fill(void) {
  /* It is there already, as our dependency; this only finds the handle. */
  state.library = dlopen(kRealName, RTLD_LAZY | RTLD_NOLOAD);
  int seen_ourselves = 0;
  dl_iterate_phdr(look_at_order, &seen_ourselves);
  /* By symbol first, in case the driver's own resolver calls one of its exported functions. */
  for (penstock_hook* hook = penstock_hooks; hook < penstock_hooks + PENSTOCK_HOOK_COUNT; ++hook) {
    hook->real = hook->real_by_symbol = symbol(hook->exported);
  }
  state.get_address = (penstock_get_address)symbol("cuGetProcAddress_v2");
  for (penstock_hook* hook = penstock_hooks; hook < penstock_hooks + PENSTOCK_HOOK_COUNT; ++hook) {
    const penstock_function found = ask(hook->base, hook->since, hook->default_stream);
    if (found != NULL && !is_ours(found)) hook->real = found;
  }
#define PENSTOCK_USE(exported, base, since, parameters) \
  penstock_driver.exported =                            \
      (__typeof__(penstock_driver.exported))resolve(#exported, base, since, PENSTOCK_NO_STREAM);
#include "preload/uses.def"
#undef PENSTOCK_USE
}

void penstock_start(void) {
  if (starting) return; /* the driver's resolver has called a hook: `real` is good enough by now */
  starting = 1;
  pthread_mutex_lock(&state.lock);
  if (!state.done) fill();
  state.done = 1;
  pthread_mutex_unlock(&state.lock);
  starting = 0;
}

void* penstock_real_library(void) {
  penstock_start();
  return state.library;
}

penstock_get_address penstock_real_get_address(void) { return state.get_address; }
int penstock_is_late(void) { return state.late; }
uint64_t penstock_unknown_forms(void) { return atomic_load(&state.unknown_forms); }

/* A form that came after all that we know of this name could touch memory unseen. */
static void note_unknown(const char* name, int version, cuuint64_t flags) {
  int newest = 0;
  for (const penstock_hook* hook = penstock_hooks; hook < penstock_hooks + PENSTOCK_HOOK_COUNT;
       ++hook) {
    const int other = hook->default_stream != PENSTOCK_NO_STREAM &&
                      (hook->default_stream == PENSTOCK_PER_THREAD) != (flags == kFlagPerThread);
    if (!other && strcmp(hook->base, name) == 0 && hook->since > newest) newest = hook->since;
  }
  if (newest != 0 && version >= newest) atomic_fetch_add(&state.unknown_forms, 1);
}

static void* substitute(const char* name, void* found, int version, cuuint64_t flags) {
  const penstock_function real = (penstock_function)found;
  for (const penstock_hook* hook = penstock_hooks; hook < penstock_hooks + PENSTOCK_HOOK_COUNT;
       ++hook) {
    if (hook->real != real && hook->real_by_symbol != real) continue;
    const int same = strcmp(hook->base, name) == 0 || strcmp(hook->exported, name) == 0;
    if (same) return (void*)hook->entry;
  }
  if (!is_ours(real)) note_unknown(name, version, flags);
  return found;
}

CUresult penstock_after_asking(CUresult result, const char* name, void** function, int version,
                               cuuint64_t flags) {
  if (result == CUDA_SUCCESS && function != NULL && *function != NULL) {
    *function = substitute(name, *function, version, flags);
  }
  return result;
}
