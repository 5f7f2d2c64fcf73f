/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  CUresult exported parameters;
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
#endif

static void* library;

static void open_library(const char* name) {
  library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) return;
  fprintf(stderr, "%s\n", dlerror());
  exit(90);
}

void* driver_symbol(const char* name) {
  if (library == NULL) open_library("libcuda.so.1");
  return dlsym(library, name);
}

static void* by_v1(const char* base, int since, cuuint64_t flags) {
  CUresult (*get)(const char*, void**, int, cuuint64_t) = dlsym(library, "cuGetProcAddress");
  void* found = NULL;
  return get(base, &found, since, flags) == 0 ? found : NULL;
}

static void* by_v2(const char* base, int since, cuuint64_t flags) {
  CUresult (*get)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*) =
      dlsym(library, "cuGetProcAddress_v2");
  void* found = NULL;
  CUdriverProcAddressQueryResult status = 9;
  const CUresult result = get(base, &found, since, flags, &status);
  return result == 0 && status == 0 ? found : NULL;
}

static void load_by_symbol(driver_api* api) {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  *(void**)&api->exported = dlsym(library, #exported);
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
}

enum { FLAGS_NO_STREAM = 1, FLAGS_LEGACY = 1, FLAGS_PER_THREAD = 2 };

/* Each row by its own name; twins by the flag that tells them apart. */
static void load_by_query(driver_api* api, void* (*get)(const char*, int, cuuint64_t)) {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  *(void**)&api->exported = get(base, since, FLAGS_##stream);
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
}

/* As a program built without a choice (flags 0) or for per-thread streams (2) does: the rows of
 * twins are all one of the two. */
static void load_with_flags(driver_api* api, cuuint64_t flags) {
#define PENSTOCK_HOOK(exported, hook, base, since, stream, kind, parameters, arguments) \
  *(void**)&api->exported = by_v2(base, since, flags);
#define PENSTOCK_TWIN(exported, twin, hook, base, since, twin_since, kind, body, parameters, \
                      arguments)                                                             \
  *(void**)&api->exported = by_v2(base, flags == 2 ? twin_since : since, flags);             \
  *(void**)&api->twin = *(void**)&api->exported;
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
}

void load_api(const char* way, driver_api* api) {
  if (strcmp(way, "name") == 0) {
    open_library("libcuda.so");
  } else if (strcmp(way, "absolute") == 0) {
    open_library(getenv("FAKE_DRIVER"));
  } else {
    open_library("libcuda.so.1");
  }
  if (strcmp(way, "v1") == 0) {
    load_by_query(api, by_v1);
  } else if (strcmp(way, "v2") == 0) {
    load_by_query(api, by_v2);
  } else if (strcmp(way, "default") == 0) {
    load_with_flags(api, 0);
  } else if (strcmp(way, "per-thread") == 0) {
    load_with_flags(api, 2);
  } else if (strcmp(way, "linked") == 0) {
#ifdef LINKED
#define PENSTOCK_HOOK(exported_name, hook, base, since, stream, kind, parameters, arguments) \
  api->exported_name = exported_name;
#include "preload/hooks.def"
#undef PENSTOCK_HOOK
#else
    exit(91);
#endif
  } else {
    load_by_symbol(api);
  }
}

const double_control* double_engine(void) {
  void* const engine = dlopen(getenv("PENSTOCK_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  return engine == NULL ? NULL : dlsym(engine, "double_controls");
}
