/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/parameters.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { kWord = 8, kFirstCapacity = 1024, kMostParameters = 4096 };

/* The words of one parameter that can hold an address. */
typedef struct {
  uint32_t parameter, offset, words;
} span;

/* A layout or a table that others may still read once something else stands in its place. */
typedef struct ended {
  struct ended* next;
} ended;

/* Never changed once published. */
typedef struct {
  ended end;
  bool known;
  uint32_t count;
  uint64_t identity;
  span spans[];
} layout;

typedef struct {
  _Atomic(uintptr_t) function;
  _Atomic(uint64_t) generation;
  _Atomic(layout*) layout;
} slot;

/* Open addressing.  A full one gives way to an empty one, for which kernels are asked anew. */
typedef struct {
  ended end;
  size_t mask, used;
  uint64_t generation; /* when it was made */
  slot slots[];
} table;

static _Atomic(table*) current;
static _Atomic(uint64_t) generation = 1;
static _Atomic(uint32_t) readers; /* that may hold a table or a layout */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ended* to_free; /* when nobody reads but who holds the lock */

static void end(ended* what) {
  if (what == NULL) return;
  what->next = to_free;
  to_free = what;
}

static void free_ended(void) {
  while (to_free != NULL && atomic_load(&readers) == 1) {
    ended* const each = to_free;
    to_free = each->next;
    free(each);
  }
}

static size_t hash(uintptr_t function) {
  return (size_t)((function >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20);
}

static slot* find(table* in, uintptr_t function) {
  for (size_t i = hash(function);; ++i) {
    slot* const each = &in->slots[i & in->mask];
    const uintptr_t there = atomic_load_explicit(&each->function, memory_order_acquire);
    if (there == function || there == 0) return each;
  }
}

typedef struct {
  size_t offset, bytes;
} place;

static CUresult tell(CUfunction function, bool as_kernel, size_t index, place* found) {
  return as_kernel
             ? PENSTOCK_ASK(cuKernelGetParamInfo, (CUkernel)function, index, &found->offset,
                            &found->bytes)
             : PENSTOCK_ASK(cuFuncGetParamInfo, function, index, &found->offset, &found->bytes);
}

/* A struct is aligned in the kernel's memory as it is in itself, so that a word of it that can hold
 * an address begins at a multiple of 8 of the kernel's memory. */
static span words_of(uint32_t parameter, place where) {
  const size_t first = (kWord - where.offset % kWord) % kWord;
  const size_t words = where.bytes < first ? 0 : (where.bytes - first) / kWord;
  return (span){parameter, (uint32_t)first, (uint32_t)words};
}

static uint64_t mix(uint64_t hash, const void* bytes, size_t count) { /* FNV-1a */
  for (const unsigned char* at = bytes; count != 0; --count) {
    hash = (hash ^ *at++) * UINT64_C(0x100000001B3);
  }
  return hash;
}

/* A kernel is its name and its parameters.  Handles say less: cuDNN compiles attention anew for
 * every length of a text, and a handle may come again for another kernel once code was unloaded. */
static uint64_t identity_of(CUfunction function, const span* spans, uint32_t count) {
  uint64_t hash = UINT64_C(0xCBF29CE484222325);
  const char* name = NULL;
  if (PENSTOCK_ASK(cuFuncGetName, &name, function) != CUDA_SUCCESS &&
      PENSTOCK_ASK(cuKernelGetName, &name, (CUkernel)function) != CUDA_SUCCESS) {
    name = NULL;
  }
  if (name != NULL) {
    hash = mix(hash, name, strlen(name));
    hash = mix(hash, spans, count * sizeof(span));
  } else {
    const uint64_t now = atomic_load(&generation);
    hash = mix(hash, &function, sizeof(function));
    hash = mix(hash, &now, sizeof(now));
  }
  return hash | 1; /* 0 is no kernel */
}

/* The runtime passes a CUkernel where a CUfunction is declared, so both are asked.  The driver ends
 * the list with INVALID_VALUE, which is also what a kernel without parameters gives at once. */
static layout* ask(CUfunction function) {
  place first = {0, 0};
  bool as_kernel = false;
  const CUresult as_function = tell(function, false, 0, &first);
  CUresult result = as_function;
  if (result != CUDA_SUCCESS) {
    as_kernel = true;
    result = tell(function, true, 0, &first);
  }
  static span found[kMostParameters]; /* under the lock */
  uint32_t parameters = 0;
  uint32_t count = 0;
  place where = first;
  while (result == CUDA_SUCCESS && parameters < kMostParameters) {
    const span words = words_of(parameters, where);
    if (words.words != 0) found[count++] = words;
    result = tell(function, as_kernel, ++parameters, &where);
  }
  layout* const made = malloc(sizeof(layout) + count * sizeof(span));
  if (made == NULL) return NULL;
  made->known = result == CUDA_ERROR_INVALID_VALUE ||
                (parameters == 0 && as_function == CUDA_ERROR_INVALID_VALUE);
  made->count = count;
  made->identity = identity_of(function, found, count);
  memcpy(made->spans, found, count * sizeof(span));
  return made;
}

/* Larger, unless code was unloaded meanwhile, whose kernels may be what filled the old one. */
static table* another(table* old) {
  const uint64_t now = atomic_load(&generation);
  size_t capacity = old == NULL ? kFirstCapacity : old->mask + 1;
  if (old != NULL && old->generation == now) capacity *= 2;
  table* const made = calloc(1, sizeof(table) + capacity * sizeof(slot));
  if (made == NULL) return old;
  made->mask = capacity - 1;
  made->generation = now;
  atomic_store(&current, made);
  for (size_t i = 0; old != NULL && i <= old->mask; ++i) {
    end((ended*)atomic_load(&old->slots[i].layout));
  }
  end((ended*)old);
  return made;
}

/* NULL only where memory has run out. */
static const layout* learn(CUfunction function) {
  pthread_mutex_lock(&lock);
  const uint64_t now = atomic_load(&generation);
  layout* const fresh = ask(function);
  table* in = atomic_load(&current);
  free_ended();
  if (in == NULL || 2 * in->used > in->mask) in = another(in);
  if (fresh == NULL || in == NULL || in->used == in->mask) {
    end((ended*)fresh); /* without a place to keep it: the next launch asks again */
    pthread_mutex_unlock(&lock);
    return fresh;
  }
  slot* const there = find(in, (uintptr_t)function);
  end((ended*)atomic_exchange(&there->layout, fresh));
  atomic_store_explicit(&there->generation, now, memory_order_release);
  if (atomic_load(&there->function) == 0) {
    ++in->used;
    if (!fresh->known) penstock_count(&penstock_counts.unknown_layouts, 1);
    atomic_store_explicit(&there->function, (uintptr_t)function, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return fresh;
}

/* Until the reader says that it no longer reads. */
static const layout* layout_of(CUfunction function) {
  atomic_fetch_add(&readers, 1);
  table* const in = atomic_load(&current);
  if (in != NULL) {
    slot* const there = find(in, (uintptr_t)function);
    if (atomic_load_explicit(&there->function, memory_order_acquire) == (uintptr_t)function &&
        atomic_load_explicit(&there->generation, memory_order_acquire) ==
            atomic_load_explicit(&generation, memory_order_relaxed)) {
      return atomic_load(&there->layout);
    }
  }
  return learn(function);
}

static void has_read(void) { atomic_fetch_sub(&readers, 1); }

uint64_t penstock_kernel_identity(CUfunction function) {
  const layout* const known = layout_of(function);
  const uint64_t identity = known != NULL ? known->identity : (uint64_t)(uintptr_t)function;
  has_read();
  return identity;
}

void penstock_forget_kernels(void) { atomic_fetch_add(&generation, 1); }

void penstock_scan(penstock_touches* touches, penstock_interposer* engine, const void* memory,
                   size_t bytes, uint64_t to) {
  const uint64_t begin = atomic_load_explicit(&engine->window_begin, memory_order_relaxed);
  const uint64_t length = atomic_load_explicit(&engine->window_end, memory_order_relaxed) - begin;
  const uint32_t access =
      to != 0 ? PENSTOCK_ACCESS_HELD : PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_WRITE;
  for (size_t at = 0; at + kWord <= bytes; at += kWord) {
    uint64_t value;
    memcpy(&value, (const char*)memory + at, sizeof(value));
    if (value - begin < length) {
      penstock_touches_push(touches, value, to != 0 ? to + at : 0, access);
    }
  }
}

/* The packed form needs no layout: it is the kernel's memory as it will be. */
static void scan_packed(penstock_touches* touches, penstock_interposer* engine, void** extra) {
  const void* memory = NULL;
  size_t bytes = 0;
  for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) memory = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(const size_t*)extra[1];
  }
  if (memory != NULL) penstock_scan(touches, engine, memory, bytes, 0);
}

bool penstock_gather(penstock_touches* touches, penstock_interposer* engine, CUfunction function,
                     void** parameters, void** extra) {
  if (parameters == NULL) {
    if (extra != NULL) scan_packed(touches, engine, extra);
    return true;
  }
  const layout* const known = layout_of(function);
  const bool described = known != NULL && known->known;
  for (uint32_t i = 0; described && i < known->count; ++i) {
    const span* const words = &known->spans[i];
    penstock_scan(touches, engine, (const char*)parameters[words->parameter] + words->offset,
                  (size_t)words->words * kWord, 0);
  }
  has_read();
  return described;
}
