/* SPDX-License-Identifier: Apache-2.0
 *
 * One piece of work on its way to the driver: what it touches, and how the engine is told.
 *
 *   penstock_work_on(&call, engine, kind, stream);  add touches;
 *   if (!penstock_begin(&call)) return call.refusal;
 *   result = penstock_end(&call, PENSTOCK_REAL(...)(...));
 *
 * Thread rule: a call belongs to the thread that makes it.
 */
#ifndef PENSTOCK_PRELOAD_WORK_H_
#define PENSTOCK_PRELOAD_WORK_H_

#include "preload/engine.h"

enum { PENSTOCK_INLINE_TOUCHES = 64 };

/* A list of addresses that grows; a failure to grow shows as `lost`. */
typedef struct {
  penstock_touch* list;
  uint32_t count, capacity;
  bool lost;
  penstock_touch own[PENSTOCK_INLINE_TOUCHES];
} penstock_touches;

void penstock_touches_init(penstock_touches* touches);
void penstock_touches_free(penstock_touches* touches);
void penstock_touches_push(penstock_touches* touches, uint64_t address, uint64_t bytes,
                           uint32_t access);

typedef struct {
  penstock_interposer* engine;
  penstock_work work;
  CUresult refusal; /* set before begin(): it is refused whatever the engine says */
  penstock_touches touches;
} penstock_call;

/* Streams that are being captured somewhere in the process; never too few. */
extern _Atomic(uint32_t) penstock_captures;
bool penstock_is_capturing(CUstream stream);
void* penstock_context_of(CUstream stream);

void penstock_work_on(penstock_call* call, penstock_interposer* engine, int kind, CUstream stream);

/* Adds what lies in a block of the engine's.  A length of 0 touches nothing; touch_block() is for a
 * length that nobody knows. */
void penstock_touch_bytes(penstock_call* call, uint64_t address, uint64_t bytes, uint32_t access);
void penstock_touch_block(penstock_call* call, uint64_t address, uint32_t access);

/* Set while this thread is between an announcement and its end: what the driver calls of its own
 * there is part of the same work. */
extern _Thread_local bool penstock_announcing;

/* Announces it.  False: the call must fail with `refusal`. */
bool penstock_begin(penstock_call* call);
CUresult penstock_end(penstock_call* call, CUresult result);

/* Whether the driver's answer is that it ran out of memory, and the engine gave some back: `bytes`,
 * or with 0 some of what it holds.  Then the call is made again, so often at the most: other
 * threads may need again what was given.  Not within an announcement, which may keep others from
 * ending theirs. */
enum { PENSTOCK_MOST_TRIES = 80 };
bool penstock_made_room(CUresult result, size_t bytes);
#define PENSTOCK_WITH_ROOM(bytes, real_call)                                                    \
  __extension__({                                                                               \
    CUresult penstock_answer = (real_call);                                                     \
    for (int penstock_tries = PENSTOCK_MOST_TRIES;                                              \
         penstock_tries != 0 && penstock_made_room(penstock_answer, bytes); --penstock_tries) { \
      penstock_answer = (real_call);                                                            \
    }                                                                                           \
    penstock_answer;                                                                            \
  })

/* Whether a launch may go straight to the driver because everything is resident.  If so, leave()
 * must follow: who turns paging on waits for that. */
static inline bool penstock_pass(penstock_interposer* engine) {
  atomic_fetch_add_explicit(&engine->passing, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&engine->active, memory_order_seq_cst) == 0) return true;
  atomic_fetch_sub_explicit(&engine->passing, 1, memory_order_release);
  return false;
}
static inline CUresult penstock_leave(penstock_interposer* engine, CUresult result) {
  atomic_fetch_sub_explicit(&engine->passing, 1, memory_order_release);
  return result;
}

/* The rest of a hook's body.  A launch is described only where paging is on; a copy always, since
 * it may wait for the device, and who turns paging on must not wait for that.  Work that touches
 * nothing of the engine's is not announced, unless it is a launch: the order of launches is what
 * the engine learns from.  Where the driver has no memory left (a launch may load its kernel, or
 * the graph allocate), room is made, and the work announced anew: paging may have begun by that. */
#define PENSTOCK_DO_LAUNCH(description, real_call)                 \
  penstock_interposer* const engine = penstock_engine();           \
  if (engine == NULL) return (real_call);                          \
  for (int tries = PENSTOCK_MOST_TRIES;; --tries) {                \
    CUresult given;                                                \
    if (penstock_pass(engine)) {                                   \
      given = penstock_leave(engine, (real_call));                 \
    } else {                                                       \
      penstock_call call;                                          \
      description;                                                 \
      if (!penstock_begin(&call)) return call.refusal;             \
      given = penstock_end(&call, (real_call));                    \
    }                                                              \
    if (tries == 0 || !penstock_made_room(given, 0)) return given; \
  }

#define PENSTOCK_DO_WORK(kind, stream, description, real_call)                             \
  penstock_interposer* const engine = penstock_engine();                                   \
  if (engine == NULL || penstock_announcing) return (real_call);                           \
  for (int tries = PENSTOCK_MOST_TRIES;; --tries) {                                        \
    penstock_call call;                                                                    \
    penstock_work_on(&call, engine, kind, penstock_stream(self, stream));                  \
    description;                                                                           \
    const bool untouched = call.touches.count == 0 && !call.touches.lost && !call.refusal; \
    if (untouched) return PENSTOCK_WITH_ROOM(0, real_call);                                \
    if (!penstock_begin(&call)) return call.refusal;                                       \
    const CUresult given = penstock_end(&call, (real_call));                               \
    if (tries == 0 || !penstock_made_room(given, 0)) return given;                         \
  }

#endif /* PENSTOCK_PRELOAD_WORK_H_ */
