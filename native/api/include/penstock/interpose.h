/* SPDX-License-Identifier: Apache-2.0
 *
 * The boundary between the libcuda.so.1 proxy and the engine behind it.
 *
 * The proxy (native/preload) stands between a program and the NVIDIA driver.  It sees every
 * allocation, copy and launch, finds the device addresses in them, and asks the engine, which
 * libpenstock.so fills in, what to do.  It knows nothing of paging; the engine knows nothing of how
 * a call was seen.  Values named CUresult are the driver's own error codes.
 *
 * Thread rule: any function of the table from any thread, several at once; penstock_interpose()
 * once.  After a fork the child's proxy calls nothing of it.
 */
#ifndef PENSTOCK_INTERPOSE_H_
#define PENSTOCK_INTERPOSE_H_

#include "penstock/penstock.h"

#ifdef __cplusplus
#include <atomic>
#define PENSTOCK_ATOMIC(type) std::atomic<type>
extern "C" {
#else
#include <stdatomic.h>
#define PENSTOCK_ATOMIC(type) _Atomic(type)
#endif

#define PENSTOCK_INTERPOSE_VERSION 4

/* Instead of a CUresult: not mine, let the driver do it. */
enum { PENSTOCK_PASS = -1 };

/* VALUE: a stream waits for, or writes, one word of device memory. */
enum {
  PENSTOCK_WORK_KERNEL = 0,
  PENSTOCK_WORK_COPY = 1,
  PENSTOCK_WORK_FILL = 2,
  PENSTOCK_WORK_GRAPH = 3,
  PENSTOCK_WORK_VALUE = 4
};

/* HELD: not touched by this copy, but found in the bytes that it brings from the host: kernels that
 * touch where the copy goes to may reach it.  `bytes` is the address at which it will stand.
 * GAPS: of a copy or a fill of rows with something between them.
 * AWAY: what a copy reads goes to memory of the device's that is not the engine's. */
enum { PENSTOCK_ACCESS_READ = 1, PENSTOCK_ACCESS_WRITE = 2, PENSTOCK_ACCESS_HELD = 4 };
enum { PENSTOCK_ACCESS_GAPS = 8, PENSTOCK_ACCESS_AWAY = 16 };

/* Why a block must stay where it is: the proxy cannot see, or not bound, what will touch it.  `for
 * good`: until it is freed, without a token. */
enum {
  PENSTOCK_PIN_GRAPH = 1,      /* an executable graph holds the address; until that is destroyed */
  PENSTOCK_PIN_TEXTURE = 2,    /* so does a texture object */
  PENSTOCK_PIN_DESCRIPTOR = 3, /* a tensor map that does not show the address in plain; for good */
  PENSTOCK_PIN_WAIT = 4,       /* a stream polls it: who writes it is not known; for good */
  PENSTOCK_PIN_SHARED = 5,     /* another process or a peer may reach it; for good */
  PENSTOCK_PIN_TABLE = 6       /* it stands where no kernel need name it; for good */
};

/* What one piece of work touches; of a linear copy, what is read and then what is written.  Only
 * addresses within the window are given. */
typedef struct {
  uint64_t address; /* may lie inside a block; may lie in none, in a gap of the window */
  uint64_t bytes;   /* from there on; 0: not known, up to the whole block around it */
  uint32_t access;  /* kernels: read and write, since nobody says */
  uint32_t reserved;
} penstock_touch;

typedef struct {
  uint64_t struct_size;
  int32_t kind;
  int32_t opaque;    /* it may touch addresses that were not seen */
  uint64_t function; /* which kernel: its name and parameters, as a number; or a graph; or 0 */
  void* context;     /* CUcontext: the stream's */
  uint64_t stream;   /* CUstream; the default streams as 1 (legacy) and 2 (per thread) */
  const penstock_touch* touches; /* in the order of the parameters; may repeat */
  uint32_t count;
  uint32_t captured; /* recorded into a graph, not run: no paging, nothing may be synchronised */
  uint64_t token;    /* the engine's own, from begin() to end() */
} penstock_work;

/* The block around an address, for questions about pointers. */
typedef struct {
  uint64_t struct_size;
  uint64_t base, bytes;
  uint64_t id; /* unique in the process, never used again */
  void* context;
  int32_t device; /* its ordinal */
  int32_t reserved;
} penstock_block;

typedef struct {
  uint64_t struct_size;
  /* All addresses of the engine's lie in [window_begin, window_end); equal: there are none yet. */
  PENSTOCK_ATOMIC(uint64_t) window_begin;
  PENSTOCK_ATOMIC(uint64_t) window_end;
  /* 0: everything is resident, and launches of kernels and graphs go straight to the driver,
   * without begin() and end().  To turn it on: store 1, then wait for `passing` to be 0; from then
   * on all work is announced.  Before it is turned off, everything must be resident.
   * While the program is recorded it is 1 from the beginning, though nothing is paged yet.
   *
   * Copies, fills and words are announced whatever it is, if they touch anything of the engine's:
   * they may wait for the device, which may in turn wait for what the waiting thread would launch.
   */
  PENSTOCK_ATOMIC(uint32_t) active;
  /* The proxy's: launches under way that found `active` 0. */
  PENSTOCK_ATOMIC(uint32_t) passing;

  /* CUresult, or PASS.  ordered: as cuMemAllocAsync, by the order of `stream`; never one that is
   * being captured. */
  int32_t (*allocate)(uint64_t bytes, void* context, uint64_t stream, int32_t ordered,
                      uint64_t* address);
  /* CUresult, or PASS for an address that is not a block's beginning. */
  int32_t (*release)(uint64_t address, void* context, uint64_t stream, int32_t ordered);
  /* The driver itself has run out, for memory that is not the engine's: give `bytes` back (0: not
   * known, so that each call in a row gives more).  Whether to try again; no longer once nothing
   * can be given back. */
  int32_t (*make_room)(void* context, uint64_t bytes);
  /* CUresult, or PASS: what the program may believe to be free, and the total. */
  int32_t (*memory_info)(void* context, uint64_t* free_bytes, uint64_t* total_bytes);
  /* CUresult, or PASS for an address in no block. */
  int32_t (*block_of)(uint64_t address, penstock_block* block);

  /* CUresult.  0: all it touches is resident for what is given to `stream` from here on, and stays
   * so until end() at least.  Else the call fails with it, and end() is not called. */
  int32_t (*begin)(penstock_work* work);
  /* The call was given to the stream; result: the driver's CUresult for it. */
  void (*end)(penstock_work* work, int32_t result);

  /* CUresult.  The block around the address is resident and stays so, its memory nobody else's even
   * when it is freed, until unpin(token); token NULL: until it is freed.  An address that lies in
   * no block is pinned by token 0, which unpin() ignores; so it does an old one. */
  int32_t (*pin)(uint64_t address, int32_t reason, uint64_t* token);
  void (*unpin)(uint64_t token);
  /* Before it is destroyed.  All memory of a primary context's is gone with it. */
  void (*context_gone)(void* context);
  void (*stream_gone)(uint64_t stream);

  /* What paging did, in words for people, without a line break; whether there was any. */
  int32_t (*summary)(char* text, uint64_t bytes);
} penstock_interposer;

/* The driver behind the proxy: nothing found through it comes back through a hook. */
typedef struct {
  uint64_t struct_size;
  uint32_t version; /* PENSTOCK_INTERPOSE_VERSION */
  uint32_t reserved;
  void* library; /* for dlsym() */
  /* cuGetProcAddress_v2; NULL in a driver without it. */
  int32_t (*get_proc_address)(const char* name, void** function, int32_t cuda_version,
                              uint64_t flags, int32_t* status);
} penstock_real_driver;

enum {
  PENSTOCK_LOG_ERROR = 0,
  PENSTOCK_LOG_WARNING = 1,
  PENSTOCK_LOG_INFO = 2,
  PENSTOCK_LOG_DEBUG = 3
};

/* What the environment says, as `penstock run` sets it or somebody by hand. */
typedef struct {
  uint64_t struct_size;
  uint64_t gpu_memory; /* the budget of each device, bytes; 0: gpu_share */
  double gpu_share;    /* of the device's memory, up to 1; 0: auto */
  int32_t safety;
  int32_t log_level;
  const char* record; /* the file to record in; NULL: none */
} penstock_interpose_options;

/* In libpenstock.so.  The table lives as long as the process.  On failure the proxy forwards every
 * call and says penstock_last_error() once. */
PENSTOCK_API penstock_status penstock_interpose(const penstock_real_driver* real,
                                                const penstock_interpose_options* options,
                                                penstock_interposer** engine);

/* ---- What the proxy exports beside the driver's own names ----------------------------------- */

typedef struct {
  uint64_t struct_size;
  uint64_t calls;    /* of hooked entry points */
  uint64_t launches; /* kernels, captured ones and those within graphs left out */
  uint64_t graph_launches;
  uint64_t captured; /* work recorded into graphs */
  uint64_t copies, fills;
  uint64_t announced;       /* work for which begin() was called */
  uint64_t touches;         /* addresses given with it */
  uint64_t opaque;          /* of it, how much may touch more than was seen */
  uint64_t unknown_layouts; /* kernels whose parameters the driver does not describe */
  uint64_t allocations, engine_allocations;
  uint64_t foreign_bytes; /* cuMemCreate, managed and pool memory that went past the engine */
  uint64_t unknown_forms; /* entry points newer than the table that were handed out as they are */
  uint64_t late;          /* the driver was there before the proxy: calls may go past it */
} penstock_proxy_counters;

/* Looked up by name in the loaded libcuda.so.1; a driver without them is not behind the proxy. */
#define PENSTOCK_PROXY_LIBRARY "penstock_proxy_real_library" /* void* (*)(void), for dlsym() */
#define PENSTOCK_PROXY_COUNTERS \
  "penstock_proxy_get_counters"                           /* void (*)(penstock_proxy_counters*) */
#define PENSTOCK_PROXY_ENTRY "penstock_proxy_entry_calls" /* uint64_t (*)(const char* exported) */

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PENSTOCK_INTERPOSE_H_ */
