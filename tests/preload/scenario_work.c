/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: every way to pass parameters, every way to launch.  Paging is on, so that an address
 * that the proxy misses is an access to memory that nobody may touch.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

typedef struct {
  CUdeviceptr a, b, out;
  int n;
  void* list[4];
} addition;

enum { COUNT = 1000 };

static void make_addition(session* with, addition* made) {
  float host[COUNT];
  made->n = COUNT;
  made->a = new_block(with, sizeof(host));
  made->b = new_block(with, sizeof(host));
  made->out = new_block(with, sizeof(host));
  for (int i = 0; i < COUNT; ++i) host[i] = (float)i;
  CHECK(with->cu.cuMemcpyHtoD_v2(made->a, host, sizeof(host)) == 0);
  for (int i = 0; i < COUNT; ++i) host[i] = (float)(3 * i);
  CHECK(with->cu.cuMemcpyHtoD_v2(made->b, host, sizeof(host)) == 0);
  made->list[0] = &made->out;
  made->list[1] = &made->a;
  made->list[2] = &made->b;
  made->list[3] = &made->n;
}

static void check_sum(session* with, const addition* of) {
  float host[COUNT];
  CHECK(with->cu.cuMemcpyDtoH_v2(host, of->out, sizeof(host)) == 0);
  for (int i = 0; i < COUNT; ++i) CHECK(host[i] == (float)(4 * i));
  CHECK(with->cu.cuMemsetD8_v2(of->out, 0, sizeof(host)) == 0);
}

static void check_announced(session* with, const addition* of, uint64_t stream) {
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->kind == PENSTOCK_WORK_KERNEL && event->count == 3);
  CHECK(event->touches[0].address == of->out && event->touches[1].address == of->a);
  CHECK(event->touches[2].address == of->b && event->touches[2].bytes == 0);
  CHECK(event->touches[0].access == (PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE));
  CHECK(event->stream == stream && !event->opaque && !event->captured && event->context != NULL);
  CHECK(count_events(with, DOUBLE_BEGIN) == count_events(with, DOUBLE_END));
  CHECK(last_event(with, DOUBLE_END)->result == 0);
}

static CUresult launch(session* with, CUfunction function, CUstream stream, void** list,
                       void** extra) {
  return with->cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, extra);
}

static void launch_all_ways(session* with, addition* sum, CUfunction function) {
  driver_api* const cu = &with->cu;
  const uint64_t stream = (uintptr_t)with->stream;
  CUlaunchConfig config = {.hStream = with->stream};
  CHECK(launch(with, function, with->stream, sum->list, NULL) == 0);
  check_announced(with, sum, stream);
  check_sum(with, sum);
  CHECK(cu->cuLaunchKernelEx(&config, function, sum->list, NULL) == 0);
  check_announced(with, sum, stream);
  check_sum(with, sum);
  CHECK(cu->cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, with->stream, sum->list) == 0);
  check_announced(with, sum, stream);
  check_sum(with, sum);
  CUDA_LAUNCH_PARAMS both[2] = {
      {.function = function, .hStream = with->stream, .kernelParams = sum->list},
      {.function = function, .hStream = with->stream, .kernelParams = sum->list}};
  with->engine->clear();
  CHECK(cu->cuLaunchCooperativeKernelMultiDevice(both, 1, 0) == 0);
  check_announced(with, sum, stream);
  check_sum(with, sum);
}

/* A struct between an int and its own end: pointers at 16 and 32 of the parameters. */
static void launch_struct(session* with) {
  float host[256] = {0};
  const CUdeviceptr block = new_block(with, sizeof(host));
  struct {
    int x;
    CUdeviceptr first; /* inside the block */
    char c;
    CUdeviceptr second;
  } by_value = {1, block + 40, 'c', block + 80};
  int k = 5;
  void* list[] = {&k, &by_value};
  CHECK(launch(with, kernel_named("by_value"), NULL, list, NULL) == 0);
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->count == 2 && event->touches[0].address == block + 40);
  CHECK(event->touches[1].address == block + 80);
  with->engine->read(block, host, sizeof(host));
  CHECK(host[10] == 5 && host[20] == 10);
}

/* A thousand pointers in one parameter, more than any list that lies on a stack. */
static void launch_many(session* with) {
  enum { MANY = 1000 };
  static CUdeviceptr table[MANY];
  const int blocks = with->few ? 10 : MANY;
  for (int i = 0; i < blocks; ++i) {
    table[i] = new_block(with, 8);
    CHECK(with->cu.cuMemsetD32_v2(table[i], (unsigned)i, 1) == 0);
  }
  for (int i = blocks; i < MANY; ++i) table[i] = table[i - blocks];
  void* list[] = {table};
  CHECK(launch(with, kernel_named("many"), NULL, list, NULL) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->count == MANY);
  for (int i = 0; i < blocks; ++i) {
    uint32_t value = 0;
    CHECK(with->cu.cuMemcpyDtoH_v2(&value, table[i], sizeof(value)) == 0);
    CHECK(value == (uint32_t)(i + MANY / blocks));
  }
}

static void launch_packed(session* with, addition* sum) {
  struct {
    CUdeviceptr out, a, b;
    int n, rest; /* of a word that could be an address */
  } packed = {sum->out, sum->a, sum->b, sum->n, 0};
  size_t bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CHECK(launch(with, kernel_named("add"), with->stream, NULL, extra) == 0);
  check_announced(with, sum, (uintptr_t)with->stream);
  check_sum(with, sum);
}

static uint64_t identity(session* with, addition* sum, CUfunction function) {
  CHECK(launch(with, function, with->stream, sum->list, NULL) == 0);
  const uint64_t told = last_event(with, DOUBLE_BEGIN)->function;
  check_sum(with, sum);
  return told;
}

/* A kernel is told by its name and its parameters, since handles change and come again. */
static void launch_namesakes(session* with, addition* sum) {
  CUfunction other = NULL;
  CHECK(DRIVER(cuModuleGetFunction)(&other, FAKE_OTHER_MODULE, "add") == 0);
  CHECK(other != kernel_named("add"));
  const uint64_t add = identity(with, sum, kernel_named("add"));
  CHECK(add != 0 && identity(with, sum, other) == add);
  CHECK(identity(with, sum, kernel_named("add_kernel_handle")) != add);
  CHECK(with->cu.cuModuleUnload(NULL) == 0);
  CHECK(identity(with, sum, kernel_named("add")) == add);
}

void parameters_scenario(session* with) {
  addition sum;
  make_addition(with, &sum);
  with->engine->activate(1);
  launch_all_ways(with, &sum, kernel_named("add"));
  launch_all_ways(with, &sum, kernel_named("add_kernel_handle"));
  launch_namesakes(with, &sum);
  launch_packed(with, &sum);
  launch_struct(with);
  launch_many(with);
  CHECK(launch(with, kernel_named("nothing"), with->stream, NULL, NULL) == 0);
  const double_event* event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->count == 0 && !event->opaque && event->function != 0);
  /* The default stream is announced by name. */
  CHECK(launch(with, kernel_named("add"), NULL, sum.list, NULL) == 0);
  event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->stream == 1 || event->stream == 2);
  /* What is launched elsewhere is announced as there, whatever context is current. */
  ((fake_stream_elsewhere_function)driver_symbol("fake_stream_elsewhere"))(with->stream);
  void* const here = last_event(with, DOUBLE_BEGIN)->context;
  CHECK(launch(with, kernel_named("add"), with->stream, sum.list, NULL) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->context != here);
  ((fake_stream_elsewhere_function)driver_symbol("fake_stream_elsewhere"))(NULL);
  /* A refusal is the program's error, and nothing is launched. */
  check_sum(with, &sum);
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(launch(with, kernel_named("add"), NULL, sum.list, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
  float first = -1;
  CHECK(with->cu.cuMemcpyDtoH_v2(&first, sum.out + 4, sizeof(first)) == 0);
  CHECK(first == 0);
  /* A kernel that the driver does not describe says so; what it touches is not known. */
  with->engine->activate(0);
  with->engine->clear();
  CHECK(launch(with, kernel_named("add"), NULL, sum.list, NULL) == 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->what != DOUBLE_BEGIN); /* all resident: straight through */
  check_sum(with, &sum);
  with->engine->activate(1);
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(launch(with, kernel_named("add_undescribed"), NULL, sum.list, NULL) != 0);
  event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->opaque && event->count == 0);
  /* Nor does it name it: then it is the handle, for as long as no code is unloaded. */
  const uint64_t told = event->function;
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(launch(with, kernel_named("add_undescribed"), NULL, sum.list, NULL) != 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->function == told);
  CHECK(with->cu.cuModuleUnload(NULL) == 0);
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(launch(with, kernel_named("add_undescribed"), NULL, sum.list, NULL) != 0);
  CHECK(last_event(with, DOUBLE_BEGIN)->function != told);
  with->engine->activate(0);
}

/* Code that comes and goes, by other handles or with other kernels behind the same ones. */
void code_scenario(session* with) {
  enum { KERNELS = 20000, LOADS = 60000 };
  static fake_kernel kernels[KERNELS];
  fake_kernel nothing;
  memcpy(&nothing, kernel_named("nothing"), sizeof(nothing));
  uint64_t value = 0;
  void* list[8];
  for (int i = 0; i < 8; ++i) list[i] = &value;
  with->engine->activate(1);
  size_t before = 0;
  const int loads = with->few ? 60 : LOADS;
  const int different = with->few ? 20 : KERNELS;
  for (int i = 0; i < loads; ++i) {
    fake_kernel* const kernel = &kernels[i % different];
    *kernel = nothing;
    kernel->count = 1 + i / different;
    for (int k = 0; k < kernel->count; ++k) kernel->offsets[k] = kernel->sizes[k] = 8;
    CHECK(launch(with, (CUfunction)kernel, with->stream, list, NULL) == 0);
    if (i == loads / 60) before = mallinfo2().uordblks;
    CHECK(with->cu.cuModuleUnload(NULL) == 0);
  }
  CHECK(mallinfo2().uordblks <= before + (256 << 10));
  with->engine->activate(0);
}

/* ---- Threads -------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200, FORKS = 300 };

static void* work(void* argument) {
  session* const with = argument;
  session own = *with;
  DRIVER(cuCtxSetCurrent)((CUcontext)with); /* each thread has its own */
  addition sum;
  make_addition(&own, &sum);
  const int rounds = own.few ? 12 : ROUNDS;
  for (int i = 0; i < rounds; ++i) {
    CHECK(launch(&own, kernel_named(i % 2 ? "add" : "add_kernel_handle"), NULL, sum.list, NULL) ==
          0);
    check_sum(&own, &sum);
    if (i % 50 == 7) CHECK(own.cu.cuModuleUnload(NULL) == 0);
  }
  return NULL;
}

/* Paging goes on and off meanwhile, and code is unloaded. */
void threads_scenario(session* with) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, work, with) == 0);
  const int times = with->few ? 10 : 50;
  for (int i = 0; i < times; ++i) {
    with->engine->activate(i % 2);
    usleep(500);
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  with->engine->activate(0);
}

static _Atomic(int) forked;
static void* destroy_textures(void* argument) {
  session* const with = argument;
  while (!atomic_load(&forked)) CHECK(with->cu.cuTexObjectDestroy(1) == 0);
  return NULL;
}

/* Another thread may look at what is held for an object; its lock is the child's as it is then. */
static void fork_while_others_destroy(session* with) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, destroy_textures, with) == 0);
  for (int i = 0; i < (with->few ? 1 : FORKS); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      _exit(with->cu.cuTexObjectDestroy(1));
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  atomic_store(&forked, 1);
  pthread_join(thread, NULL);
}

/* The child of a process that used CUDA may not use it: nothing of the engine runs there. */
void fork_scenario(session* with) {
  addition sum;
  make_addition(with, &sum);
  with->engine->activate(1);
  with->engine->clear();
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr mine = 0;
    CHECK(with->cu.cuMemAlloc_v2(&mine, 16) == 0);
    CHECK(with->cu.cuMemsetD8_v2(mine, 1, 16) == 0);
    CHECK(launch(with, kernel_named("nothing"), NULL, NULL, NULL) == 0);
    CHECK(with->cu.cuMemFree_v2(mine) == 0);
    exit(count_events(with, DOUBLE_ALLOCATE) + count_events(with, DOUBLE_BEGIN) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(launch(with, kernel_named("add"), NULL, sum.list, NULL) == 0);
  check_sum(with, &sum);
  fork_while_others_destroy(with);
  with->engine->activate(0);
}
