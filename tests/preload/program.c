/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program of one scenario: program WAY SCENARIO [faults].  It ends with 0 if all was as it
 * should be.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "faults.h"

static double_event events[1 << 12];

void begin_session(session* made, const char* way) {
  memset(made, 0, sizeof(*made));
  load_api(way, &made->cu);
  CUcontext context = NULL;
  CHECK(DRIVER(cuInit)(0) == 0);
  CHECK(made->cu.cuDevicePrimaryCtxRetain(&context, 0) == 0);
  CHECK(DRIVER(cuCtxSetCurrent)(context) == 0);
  CHECK(made->cu.cuStreamCreate(&made->stream, 0) == 0);
  made->engine = double_engine();
  CHECK(made->engine != NULL);
}

CUfunction kernel_named(const char* name) {
  CUfunction found = NULL;
  CHECK(DRIVER(cuModuleGetFunction)(&found, NULL, name) == 0);
  return found;
}

CUdeviceptr new_block(session* with, size_t bytes) {
  CUdeviceptr address = 0;
  CHECK(with->cu.cuMemAlloc_v2(&address, bytes) == 0);
  return address;
}

const double_event* last_event(session* with, int what) {
  const size_t count = with->engine->events(events, sizeof(events) / sizeof(events[0]));
  for (size_t i = count; i != 0; --i) {
    if (events[i - 1].what == what) return &events[i - 1];
  }
  static const double_event nothing = {.what = -1};
  return &nothing;
}

size_t count_events(session* with, int what) {
  const size_t count = with->engine->events(events, sizeof(events) / sizeof(events[0]));
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) found += events[i].what == what;
  return found;
}

int touches_address(const double_event* event, uint64_t address) {
  for (uint32_t i = 0; i < event->count && i < 8; ++i) {
    if (event->touches[i].address == address) return 1;
  }
  return 0;
}

/* Without an engine: everything works as it does without the proxy. */
static void forwarded(session* with) {
  (void)with;
  driver_api cu;
  load_api("dlopen", &cu);
  CUdeviceptr a = 0;
  size_t left = 0;
  size_t total = 0;
  CUcontext context = NULL;
  CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0) == 0);
  CHECK(DRIVER(cuCtxSetCurrent)(context) == 0);
  CHECK(cu.cuMemAlloc_v2(&a, 64) == 0 && a != 0);
  CHECK(cu.cuMemsetD8_v2(a, 7, 64) == 0);
  CHECK(((unsigned char*)(uintptr_t)a)[63] == 7);
  CHECK(cu.cuMemGetInfo_v2(&left, &total) == 0 && left == 111 && total == 222);
  void* parameters[] = {NULL};
  CHECK(cu.cuLaunchKernel(kernel_named("nothing"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) ==
        0);
  CHECK(cu.cuMemFree_v2(a) == 0);
}

/* The driver first, then the proxy: as a library that is loaded too late. */
static void late(session* with) {
  (void)with;
  CHECK(dlopen(getenv("FAKE_DRIVER"), RTLD_NOW) != NULL);
  void* const proxy = dlopen(getenv("PROXY"), RTLD_NOW);
  CHECK(proxy != NULL);
  CUresult (*retain)(CUcontext*, CUdevice) = dlsym(proxy, "cuDevicePrimaryCtxRetain");
  void (*counters)(penstock_proxy_counters*) = dlsym(proxy, PENSTOCK_PROXY_COUNTERS);
  CUcontext context = NULL;
  CHECK(retain(&context, 0) == 0);
  penstock_proxy_counters all = {.struct_size = sizeof(all)};
  counters(&all);
  CHECK(all.late == 1);
}

/* What the table does not know comes from the driver, as it is. */
static void unknown(session* with) {
  CUresult (*get)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*) =
      driver_symbol("cuGetProcAddress_v2");
  void* (*real_library)(void) = driver_symbol(PENSTOCK_PROXY_LIBRARY);
  void (*counters)(penstock_proxy_counters*) = driver_symbol(PENSTOCK_PROXY_COUNTERS);
  void* const real = real_library();
  CHECK(real != NULL);
  CHECK(driver_symbol("cuFromTheFuture_v3") == dlsym(real, "cuFromTheFuture_v3"));
  CHECK(driver_symbol("cuLaunchKernel") != dlsym(real, "cuLaunchKernel"));
  CHECK(driver_symbol("cuThereIsNoSuch") == NULL);
  void* found = NULL;
  CHECK(get("cuFromTheFuture", &found, 13000, 0, NULL) == 0);
  CHECK(found == dlsym(real, "cuFromTheFuture_v3"));
  CHECK(get("cuThereIsNoSuch", &found, 13000, 0, NULL) == 500);
  penstock_proxy_counters all = {.struct_size = sizeof(all)};
  counters(&all);
  CHECK(all.unknown_forms == 0);
  /* An older form has other parameters, and a newer one may have: neither is replaced. */
  unsigned int address = 0;
  CHECK(get("cuMemAlloc", &found, 2000, 0, NULL) == 0);
  CHECK(((CUresult(*)(unsigned int*, unsigned int))found)(&address, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  counters(&all);
  CHECK(all.unknown_forms == 0);
  CHECK(get("cuLaunchKernel", &found, 99000, 0, NULL) == 0);
  CHECK(((CUresult(*)(void))found)() == 9);
  counters(&all);
  CHECK(all.unknown_forms == 1);
  CHECK(get("cuLaunchKernel", &found, 13000, 0, NULL) == 0);
  CHECK(found == driver_symbol("cuLaunchKernel"));
  (void)with;
}

/* What the engine was told to do. */
static void options(session* with) {
  const penstock_interpose_options given = with->engine->options();
  printf("%lu %.3f %d %d %s\n", (unsigned long)given.gpu_memory, given.gpu_share, given.safety,
         given.log_level, given.record != NULL ? given.record : "-");
}

/* A child that had no context before the fork has one of its own. */
static void early_fork(session* with) {
  (void)with;
  driver_api cu;
  load_api("dlopen", &cu); /* questions alone: no context, no engine */
  CHECK(double_engine() == NULL);
  const pid_t child = fork();
  if (child == 0) {
    session own;
    begin_session(&own, "v2");
    parameters_scenario(&own);
    exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  session own;
  begin_session(&own, "v2");
  parameters_scenario(&own);
}

static const struct {
  const char* name;
  scenario run;
  int has_session;
} scenarios[] = {
    {"parameters", parameters_scenario, 1},
    {"code", code_scenario, 1},
    {"copies", copies_scenario, 1},
    {"fills", fills_scenario, 1},
    {"memory", memory_scenario, 1},
    {"pointers", pointers_scenario, 1},
    {"pins", pins_scenario, 1},
    {"graphs", graphs_scenario, 1},
    {"life", life_scenario, 1},
    {"threads", threads_scenario, 1},
    {"fork", fork_scenario, 1},
    {"unknown", unknown, 1},
    {"options", options, 1},
    {"early-fork", early_fork, 0},
    {"forwarded", forwarded, 0},
    {"late", late, 0},
};

int main(int count, char** arguments) {
  CHECK(count == 3 || (count == 4 && strcmp(arguments[3], "faults") == 0));
  for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); ++i) {
    if (strcmp(scenarios[i].name, arguments[2]) != 0) continue;
    if (count == 4) return run_with_faults(arguments[2], arguments[1], scenarios[i].run);
    static session with;
    if (scenarios[i].has_session) begin_session(&with, arguments[1]);
    scenarios[i].run(&with);
    printf("%s by %s: well\n", arguments[2], arguments[1]);
    return 0;
  }
  return 2;
}
