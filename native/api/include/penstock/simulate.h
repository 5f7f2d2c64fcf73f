/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulations: what a recorded program would do under another budget of device memory.  A part of
 * penstock.h, which includes it.
 *
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_SIMULATE_H_
#define PENSTOCK_SIMULATE_H_

#include "penstock/penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One record of a recording: 24 bytes, as they lie in its file behind a header of 64. */
enum {
  PENSTOCK_RECORD_ALLOCATE = 1, /* number: the block; at: nanoseconds; value: bytes */
  PENSTOCK_RECORD_FREE = 2,     /* number: the block; at: nanoseconds */
  PENSTOCK_RECORD_WORK = 3,     /* number: touches that follow; at: nanoseconds; value: function in
                                 * the lower half, stream in the upper; flags 1: may touch more */
  PENSTOCK_RECORD_TOUCH = 4, /* number: the block; at: offset; value: bytes; flags 1: may write */
  PENSTOCK_RECORD_PIN = 5,   /* number: the block, which stays from here on; at: nanoseconds */
  PENSTOCK_RECORD_UNPIN = 6
};

typedef struct {
  uint8_t op;
  uint8_t flags;
  uint16_t kind; /* of work: PENSTOCK_WORK_* of interpose.h */
  uint32_t number;
  uint64_t at;
  uint64_t value;
} penstock_work_record;

enum {
  PENSTOCK_SIMULATE_PENSTOCK = 0, /* the engine, as under penstock run */
  PENSTOCK_SIMULATE_LRU = 1,      /* pages on demand; the least recently used leaves, */
  PENSTOCK_SIMULATE_FIFO = 2,     /* the one that came first, */
  PENSTOCK_SIMULATE_BELADY = 3    /* the one that is needed last */
};

typedef struct {
  uint64_t struct_size;
  uint64_t budget;       /* of device memory, bytes */
  uint64_t device_bytes; /* of the device; 0 = the budget */
  uint64_t page_bytes;   /* 0 = as the engine has it for the budget */
  uint64_t granularity;  /* of device memory; 0 = 2 MiB */
  uint64_t steps;        /* to cut the recording into; 0 = by where it repeats itself */
  double link_gb_per_s;  /* each direction */
  double create_us, map_us, set_access_us, unmap_us; /* as penstock_replay_options */
  int32_t policy;                                    /* PENSTOCK_SIMULATE_PENSTOCK, ... */
  int32_t kernels_write;    /* not 0: every kernel changes all that it touches */
  uint64_t recorded_budget; /* of the recording, bytes: below its peak the times between its pieces
                             * hold the engine's own calls already; 0 = it was not paged */
} penstock_simulate_options;

typedef struct {
  double ms;
  double recorded_ms; /* what the step took when it was recorded */
  double least_ms;    /* by that, by the least bytes, and by when they can move */
  uint64_t bytes_in, bytes_out;
  uint64_t page_uses; /* pages that pieces of work touch, each piece counted by itself */
  uint64_t page_loads;
  uint64_t least_bytes_in, least_bytes_out; /* what Belady's MIN moves */
  uint64_t first_piece, end_piece;          /* its pieces of work */
} penstock_simulate_step;

/* A time that kernels (lane 0), or copies to the device (1) or out of it (2), took. */
typedef struct {
  uint64_t lane;
  double begin_ms; /* since the step began */
  double end_ms;
} penstock_simulate_span;

typedef struct {
  uint64_t struct_size;
  uint64_t steps;  /* simulated; as many as there is room for are written */
  uint64_t pieces; /* of work in the recording */
  uint64_t blocks;
  uint64_t peak_bytes; /* of blocks that live at one time */
  uint64_t page_bytes;
  uint64_t ahead;        /* pages that the engine brought in before their use */
  uint64_t demanded;     /* and when they were used */
  uint64_t failed_piece; /* that the budget does not hold; UINT64_MAX: none */
  uint64_t failed_bytes; /* that it touches */
  uint64_t spans;        /* of the last step; as many as there is room for are written */
} penstock_simulate_result;

/* The options with their defaults filled in, measured on an H200; there is none for the budget. */
PENSTOCK_API penstock_status penstock_simulate_defaults(penstock_simulate_options* options);
/* Simulates a recording.  What cannot have happened is PENSTOCK_INVALID_ARGUMENT with the record.
 * A budget that one piece of work does not fit is no failure: the steps end before that piece. */
PENSTOCK_API penstock_status penstock_simulate(const penstock_work_record* records, uint64_t count,
                                               const penstock_simulate_options* options,
                                               penstock_simulate_step* steps, uint64_t capacity,
                                               penstock_simulate_span* spans,
                                               uint64_t span_capacity,
                                               penstock_simulate_result* result);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PENSTOCK_SIMULATE_H_ */
