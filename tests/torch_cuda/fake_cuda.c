/* SPDX-License-Identifier: Apache-2.0
 *
 * The libcuda.so.1 that torch, the fake cudart and Penstock find: it hands every question for an
 * entry point to the emulated one, whose path EMULATED is, and adds what torch looks up by name
 * and the emulation has no use for.  stubs.py generates the rest of those, which refuse.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
typedef int (*get_address)(const char*, void**, int, uint64_t, int*);

EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                               int* status) {
  static get_address get;
  if (get == NULL) {
    void* const library = dlopen(EMULATED, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "fake libcuda: %s\n", dlerror());
      abort();
    }
    *(void**)&get = dlsym(library, "cuGetProcAddress_v2");
  }
  return get(name, function, version, flags, status);
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}
