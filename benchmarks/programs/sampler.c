/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples the thread that starts it: where it is, by the clock on the wall, so that waits count.
 * Only for run_profile.py, which builds and loads it.  What a sample costs (a walk up the stack,
 * 30 to 50 us) slows the thread down evenly: shares are what to read off, not times.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { kFrames = 40, kSamples = 100000 };

static void* frames[kSamples][kFrames];
static int depths[kSamples];
static volatile int count;
static timer_t timer;

static void sample(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)info, (void)context;
  const int at = count;
  if (at == kSamples) return;
  depths[at] = backtrace(frames[at], kFrames);
  count = at + 1;
}

static void set_timer(long period_us) {
  const struct timespec every = {0, period_us * 1000};
  const struct itimerspec times = {every, every};
  timer_settime(timer, 0, &times, NULL);
}

int sampler_start(long period_us) {
  void* loads_the_unwinder[2];
  backtrace(loads_the_unwinder, 2);
  count = 0;
  struct sigaction action = {.sa_sigaction = sample, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 5};
  event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
  if (sigaction(SIGRTMIN + 5, &action, NULL) != 0) return -1;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return -1;
  set_timer(period_us);
  return 0;
}

/* A line a sample, the innermost frame first: address in its file, the file, its symbol if any. */
int sampler_stop(const char* path) {
  set_timer(0);
  timer_delete(timer);
  FILE* const file = fopen(path, "w");
  if (file == NULL) return -1;
  for (int i = 0; i < count; ++i) {
    for (int k = 2; k < depths[i]; ++k) { /* the handler, and what called it */
      Dl_info found;
      if (dladdr(frames[i][k], &found) == 0) continue;
      const unsigned long offset = (char*)frames[i][k] - (char*)found.dli_fbase;
      const char* const name = found.dli_sname != NULL ? found.dli_sname : "";
      fprintf(file, " %lx|%s|%.80s", offset, found.dli_fname, name);
    }
    fputc('\n', file);
  }
  return fclose(file);
}
