/* SPDX-License-Identifier: Apache-2.0
 *
 * A scenario again and again, in a process of its own each time, with each call of the driver
 * failing in turn, once or from there on, and then with each allocation of the proxy's.  The
 * program may notice, and end; nothing may crash, hang or find memory that is not its own.
 * PENSTOCK_EVERY_CALL: none is left out.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_driver.h"

enum { MOST_SECONDS = 30, NOTICED = 1 };

/* Of a child, which may end anywhere: how many there were that could fail. */
static _Atomic(uint64_t)* seen;
static uint64_t failing_allocation; /* 0: none */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ALLOCATIONS = 0 }; /* they are the sanitizer's */
#else
enum { ALLOCATIONS = 1 };

static int refused(const void* caller) {
  Dl_info found;
  if (failing_allocation == 0 || dladdr(caller, &found) == 0) return 0;
  const char* const proxy = getenv("PROXY");
  if (proxy == NULL || strcmp(found.dli_fname, proxy) != 0) return 0;
  if (atomic_fetch_add(seen, 1) + 1 != failing_allocation) return 0;
  errno = ENOMEM;
  return 1;
}

extern void* __libc_malloc(size_t bytes);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* old, size_t bytes);
void* malloc(size_t bytes) {
  return refused(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  return refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  return refused(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}
#endif

typedef struct {
  const char* name;
  int calls, for_good;
} kind;

static void be_failed(const char* way, scenario run, const kind* what, uint64_t nth) {
  static session with;
  alarm(MOST_SECONDS);
  if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
  begin_session(&with, way);
  with.few = 1;
  if (what->calls) {
    ((fake_fail_at_function)driver_symbol("fake_fail_at"))(nth, what->for_good, seen);
  } else {
    failing_allocation = nth;
  }
  run(&with);
  exit(0);
}

int run_with_faults(const char* name, const char* way, scenario run) {
  static const kind kinds[] = {
      {"calls once", 1, 0}, {"calls for good", 1, 1}, {"allocations", 0, 0}};
  const int every = getenv("PENSTOCK_EVERY_CALL") != NULL;
  int wrong = 0;
  seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(seen != MAP_FAILED);
  printf("%s:", name);
  for (size_t i = 0; i < 2 + ALLOCATIONS; ++i) {
    uint64_t nth = 0;
    uint64_t runs = 0;
    do {
      nth += every ? 1 : 1 + nth / 2;
      ++runs;
      atomic_store(seen, 0);
      fflush(stdout);
      const pid_t child = fork();
      if (child == 0) be_failed(way, run, &kinds[i], nth);
      int status = -1;
      CHECK(waitpid(child, &status, 0) == child);
      const int most = atomic_load(seen) < nth ? 0 : NOTICED; /* nothing failed in the last one */
      if (WIFEXITED(status) && WEXITSTATUS(status) <= most) continue;
      fprintf(stderr, "%s, %s %lu: %s %d\n", name, kinds[i].name, (unsigned long)nth,
              WIFSIGNALED(status) ? "signal" : "exit code",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      ++wrong;
    } while (atomic_load(seen) >= nth);
    printf(" %lu %s,", (unsigned long)runs - 1, kinds[i].name);
  }
  printf(" %d wrong\n", wrong);
  return wrong != 0;
}
