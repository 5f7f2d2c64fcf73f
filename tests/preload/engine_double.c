/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "engine_double.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WINDOW = 1 << 28, PAGE = 4096, MOST_BLOCKS = 4096, MOST_EVENTS = 1 << 16 };

typedef struct {
  uint64_t base, bytes, held;
  int64_t pins;
  int uses;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block blocks[MOST_BLOCKS];
static int block_count;
static char* window;
static uint64_t next_free;
static double_event* log_of_events;
static size_t event_count;
static int32_t refusal;
static int refused_pin; /* of those to come, from 1 */
static int to_pass, closed;
static penstock_interpose_options given;
static penstock_interposer table;
static __thread int within; /* begun and not ended by this thread */

static double_event* note(int what) {
  if (event_count == MOST_EVENTS) event_count = 0;
  double_event* const event = &log_of_events[event_count++];
  memset(event, 0, sizeof(*event));
  event->what = what;
  return event;
}

static block* find(uint64_t address) {
  for (int i = 0; i < block_count; ++i) {
    if (address - blocks[i].base < blocks[i].bytes) return &blocks[i];
  }
  return NULL;
}

static void protect(const block* of) {
  const int open = of->uses > 0 || !closed;
  if (mprotect((void*)(uintptr_t)of->base, of->held, open ? PROT_READ | PROT_WRITE : PROT_NONE)) {
    abort();
  }
}

static int32_t allocate(uint64_t bytes, void* context, uint64_t stream, int32_t ordered,
                        uint64_t* address) {
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_ALLOCATE);
  event->bytes = bytes;
  event->context = context;
  event->stream = stream;
  event->kind = ordered;
  int32_t result = PENSTOCK_PASS;
  if (to_pass > 0) {
    --to_pass;
  } else if (getenv("DOUBLE_PASSES") == NULL) { /* set: no memory of its own, for a real GPU */
    block* const made = &blocks[block_count++];
    made->base = (uint64_t)(uintptr_t)window + next_free;
    made->bytes = bytes;
    made->held = (bytes + PAGE - 1) / PAGE * PAGE;
    made->pins = made->uses = 0;
    next_free += made->held + PAGE;
    protect(made);
    *address = event->address = made->base;
    /* Wide: as of ranges that lie apart, with the host's memory and others' between them. */
    const bool wide = getenv("DOUBLE_WIDE") != NULL;
    atomic_store(&table.window_begin, wide ? 1 << 16 : (uint64_t)(uintptr_t)window);
    atomic_store(&table.window_end,
                 wide ? UINT64_C(1) << 47 : (uint64_t)(uintptr_t)window + WINDOW);
    result = 0;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static int32_t release(uint64_t address, void* context, uint64_t stream, int32_t ordered) {
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_RELEASE);
  event->address = address;
  event->context = context;
  event->stream = stream;
  event->kind = ordered;
  block* const gone = find(address);
  const int32_t result = gone != NULL && gone->base == address ? 0 : PENSTOCK_PASS;
  if (result == 0) {
    mprotect((void*)(uintptr_t)gone->base, gone->held, PROT_NONE);
    gone->bytes = 0;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static int32_t make_room(void* context, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_ROOM);
  event->context = context;
  event->bytes = bytes;
  pthread_mutex_unlock(&lock);
  return 1;
}

static int32_t memory_info(void* context, uint64_t* free_bytes, uint64_t* total_bytes) {
  (void)context;
  if (getenv("DOUBLE_PASSES") != NULL) return PENSTOCK_PASS;
  *free_bytes = 1000;
  *total_bytes = 2000;
  return 0;
}

static int32_t block_of(uint64_t address, penstock_block* found) {
  pthread_mutex_lock(&lock);
  const block* const around = find(address);
  if (around != NULL) {
    found->base = around->base;
    found->bytes = around->bytes;
    found->id = (uint64_t)(around - blocks) + 7;
    found->context = &table;
    found->device = 3;
  }
  pthread_mutex_unlock(&lock);
  return around != NULL ? 0 : PENSTOCK_PASS;
}

static void describe(double_event* event, const penstock_work* work) {
  event->kind = work->kind;
  event->opaque = work->opaque;
  event->captured = (int32_t)work->captured;
  event->function = work->function;
  event->stream = work->stream;
  event->context = work->context;
  event->count = work->count;
  for (uint32_t i = 0; i < work->count && i < 8; ++i) event->touches[i] = work->touches[i];
}

static void use(const penstock_work* work, int change) {
  for (int i = 0; work->opaque && i < block_count; ++i) { /* it may touch anything */
    blocks[i].uses += change;
    if (blocks[i].bytes != 0) protect(&blocks[i]);
  }
  for (uint32_t i = 0; i < work->count; ++i) {
    block* const touched = find(work->touches[i].address);
    if (touched == NULL) continue;
    const bool held = work->touches[i].access == PENSTOCK_ACCESS_HELD;
    const uint64_t end = work->touches[i].address + (held ? 0 : work->touches[i].bytes);
    if (end > touched->base + touched->bytes) {
      fprintf(stderr, "a touch reaches beyond its block\n");
      abort();
    }
    touched->uses += change;
    protect(touched);
  }
}

static int32_t begin(penstock_work* work) {
  if (within++ != 0) {
    fprintf(stderr, "work within work\n");
    abort();
  }
  pthread_mutex_lock(&lock);
  describe(note(DOUBLE_BEGIN), work);
  const int32_t result = refusal;
  refusal = 0;
  if (result == 0) {
    use(work, 1);
    work->token = 0xabc;
  } else {
    --within;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static void end(penstock_work* work, int32_t result) {
  --within;
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_END);
  describe(event, work);
  event->result = result;
  if (work->token != 0xabc) abort();
  use(work, -1);
  pthread_mutex_unlock(&lock);
}

/* The token is the address. */
static int32_t pin(uint64_t address, int32_t reason, uint64_t* token) {
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_PIN);
  event->address = address;
  event->reason = reason;
  event->result = token != NULL ? 1 : 2;
  const int32_t result = refused_pin != 0 && --refused_pin == 0 ? 2 : 0;
  block* const around = find(address);
  if (around != NULL && result == 0) around->pins += 1;
  if (token != NULL) *token = around != NULL && result == 0 ? address : 0;
  pthread_mutex_unlock(&lock);
  return result;
}

static void unpin(uint64_t token) {
  pthread_mutex_lock(&lock);
  double_event* const event = note(DOUBLE_PIN);
  event->address = token;
  event->result = -1;
  block* const around = find(token);
  if (around != NULL) around->pins -= 1;
  pthread_mutex_unlock(&lock);
}

static void context_gone(void* context) {
  pthread_mutex_lock(&lock);
  note(DOUBLE_CONTEXT)->context = context;
  pthread_mutex_unlock(&lock);
}

static void stream_gone(uint64_t stream) {
  pthread_mutex_lock(&lock);
  note(DOUBLE_STREAM)->stream = stream;
  pthread_mutex_unlock(&lock);
}

static int32_t summary(char* text, uint64_t bytes) {
  snprintf(text, bytes, "1 byte came in");
  return getenv("DOUBLE_PAGED") != NULL;
}

static penstock_interposer table = {.struct_size = sizeof(table),
                                    .allocate = allocate,
                                    .release = release,
                                    .make_room = make_room,
                                    .memory_info = memory_info,
                                    .block_of = block_of,
                                    .begin = begin,
                                    .end = end,
                                    .pin = pin,
                                    .unpin = unpin,
                                    .context_gone = context_gone,
                                    .stream_gone = stream_gone,
                                    .summary = summary};

const char* penstock_last_error(void) { return "the double was told to refuse"; }

penstock_status penstock_interpose(const penstock_real_driver* real,
                                   const penstock_interpose_options* options,
                                   penstock_interposer** engine) {
  if (getenv("DOUBLE_REFUSES") != NULL) return PENSTOCK_UNSUPPORTED;
  if (real->version != PENSTOCK_INTERPOSE_VERSION || real->library == NULL) abort();
  given = *options;
  window = mmap(NULL, WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  log_of_events = calloc(MOST_EVENTS, sizeof(double_event));
  *engine = &table;
  return PENSTOCK_OK;
}

/* ---- For the tests -------------------------------------------------------------------------- */

static size_t events(double_event* to, size_t most) {
  pthread_mutex_lock(&lock);
  const size_t count = event_count < most ? event_count : most;
  memcpy(to, log_of_events + (event_count - count), count * sizeof(double_event));
  pthread_mutex_unlock(&lock);
  return count;
}

static void clear(void) {
  pthread_mutex_lock(&lock);
  event_count = 0;
  pthread_mutex_unlock(&lock);
}

/* Nobody may go straight to the driver while blocks are out of reach. */
static void activate(int active) {
  if (active) {
    atomic_store(&table.active, 1);
    while (atomic_load(&table.passing) != 0) sched_yield();
  }
  pthread_mutex_lock(&lock);
  closed = active;
  for (int i = 0; i < block_count; ++i) {
    if (blocks[i].bytes != 0) protect(&blocks[i]);
  }
  pthread_mutex_unlock(&lock);
  if (!active) atomic_store(&table.active, 0);
}

static void refuse(int32_t result) { refusal = result; }
static void refuse_pin(int which) { refused_pin = which; }
static void pass(int allocations) { to_pass = allocations; }

static void read_block(uint64_t address, void* to, size_t bytes) {
  pthread_mutex_lock(&lock);
  block* const around = find(address);
  ++around->uses;
  protect(around);
  memcpy(to, (const void*)(uintptr_t)address, bytes);
  --around->uses;
  protect(around);
  pthread_mutex_unlock(&lock);
}

static int64_t pins(uint64_t address) {
  const block* const around = find(address);
  return around != NULL ? around->pins : -1;
}

static penstock_interpose_options options_given(void) { return given; }

__attribute__((visibility("default"))) const double_control double_controls;
const double_control double_controls = {events,     clear, activate,   refuse,       pass,
                                        read_block, pins,  refuse_pin, options_given};
