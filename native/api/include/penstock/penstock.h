/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface of Penstock: the only symbols that libpenstock.so exports.
 *
 * Every function that can fail returns a penstock_status; 0 is success.  penstock_last_error()
 * then holds one line for the calling thread.  Structs begin with their own size, so that a caller
 * built against an older header keeps working.  Handles are opaque and may be used from any
 * thread; a handle must not be used during or after its destruction.  Nothing here exits or throws.
 */
#ifndef PENSTOCK_PENSTOCK_H_
#define PENSTOCK_PENSTOCK_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_API __attribute__((visibility("default")))

typedef int32_t penstock_status;
enum {
  PENSTOCK_OK = 0,
  PENSTOCK_INVALID_ARGUMENT = 1,
  PENSTOCK_OUT_OF_MEMORY = 2,      /* the device or the budget cannot hold it */
  PENSTOCK_HOST_OUT_OF_MEMORY = 3, /* host memory or its page-lock limit */
  PENSTOCK_UNSUPPORTED = 4,
  PENSTOCK_NO_DEVICE = 5,
  PENSTOCK_DRIVER = 6,
  PENSTOCK_NOT_READY = 7,
  PENSTOCK_INTERNAL = 8
};

typedef struct penstock_device penstock_device;
typedef struct penstock_pager penstock_pager;
typedef struct penstock_managed penstock_managed;

PENSTOCK_API const char* penstock_version(void);
PENSTOCK_API const char* penstock_last_error(void);

/* ---- Devices ------------------------------------------------------------------------------ */

enum { PENSTOCK_CUDA = 0, PENSTOCK_EMULATED = 1 };

typedef struct {
  uint64_t struct_size;
  int32_t kind;
  int32_t ordinal;   /* CUDA device */
  uint64_t capacity; /* the rest is for the emulated GPU; 0 = default */
  uint64_t host_capacity;
  uint64_t granularity;
  uint64_t seed; /* of random delays in its streams */
  uint32_t max_delay_us;
  uint32_t reserved;
  int64_t fail_at_call; /* the Nth driver call fails; 0 = none */
} penstock_device_options;

typedef struct {
  uint64_t struct_size;
  char name[128];
  int32_t ordinal;
  int32_t driver_version;     /* 13000 = 13.0 */
  int32_t compute_capability; /* 90 = 9.0 */
  int32_t virtual_memory;     /* booleans */
  int32_t host_chunks;
  int32_t managed;
  int32_t concurrent_managed;
  int32_t emulated;
  uint64_t total; /* bytes */
  uint64_t granularity;
} penstock_device_info;

typedef struct {
  uint64_t struct_size;
  int64_t ranges, chunks, mappings, host_allocations, managed_allocations, streams, events;
} penstock_live_counts;

PENSTOCK_API penstock_status penstock_open(const penstock_device_options* options,
                                           penstock_device** device);
/* Pagers on the device must have been destroyed before. */
PENSTOCK_API void penstock_close(penstock_device* device);
PENSTOCK_API penstock_status penstock_get_info(penstock_device* device, penstock_device_info* info);
PENSTOCK_API penstock_status penstock_memory(penstock_device* device, uint64_t* free_bytes,
                                             uint64_t* total_bytes);
PENSTOCK_API penstock_status penstock_live(penstock_device* device, penstock_live_counts* counts);
/* Driver calls made so far that can fail (emulated GPU only, else 0): for fault injection. */
PENSTOCK_API int64_t penstock_driver_calls(penstock_device* device);
/* Copy `bytes` of page-locked memory `repeats` times each way; GB/s (decimal), best of them. */
PENSTOCK_API penstock_status penstock_measure_link(penstock_device* device, uint64_t bytes,
                                                   int32_t repeats, double* in_gb_per_s,
                                                   double* out_gb_per_s);

/* ---- The pager ---------------------------------------------------------------------------- */

/* What happens to an evicted page's address.  NORMAL leaves it mapped to its old chunk until that
 * must change, so that a steady iteration makes no mapping call: a kernel that reads a block it did
 * not declare sees other data.  STRICT unmaps it as soon as its last use is over: such a kernel
 * faults. */
enum { PENSTOCK_SAFETY_NORMAL = 0, PENSTOCK_SAFETY_STRICT = 1 };

typedef struct {
  uint64_t struct_size;
  uint64_t budget;           /* bytes of device memory for chunks, pinned ranges included */
  uint64_t chunk_bytes;      /* the unit of paging; rounded up to the granularity */
  uint64_t look_ahead_bytes; /* wanted in flight beyond the running use's own pages */
  uint64_t max_copy_bytes;   /* neighbouring pages go in one copy up to this size */
  int32_t safety;
  int32_t profile_every; /* time the stalls of every Nth iteration; 0 = never */
  uint32_t copy_streams; /* copies in that may be under way at once; 0 = default */
  uint32_t reserved;
} penstock_pager_options;

PENSTOCK_API penstock_status penstock_pager_create(penstock_device* device,
                                                   const penstock_pager_options* options,
                                                   penstock_pager** pager);
/* Waits for all work that the pager knows of; leaves nothing mapped, allocated or running. */
PENSTOCK_API void penstock_pager_destroy(penstock_pager* pager);

typedef struct {
  uint64_t struct_size;
  int64_t id;
  uint64_t address; /* of the device range */
  uint64_t bytes;   /* as asked for */
  void* host;       /* the page-locked copy, `bytes` long */
} penstock_range;

/* PINNED: always resident, never evicted. ON_HOST: never in device memory at all; the device reads
 * it over the link at `address`, which is `host`: for large tables of which a pass reads few rows.
 */
enum { PENSTOCK_PINNED = 1, PENSTOCK_ON_HOST = 2 };

/* Reserve a range and its page-locked host copy, which the caller fills before the first use. A
 * pinned range is resident from the start, but holds nothing until penstock_fetch(). */
PENSTOCK_API penstock_status penstock_range_create(penstock_pager* pager, uint64_t bytes,
                                                   uint32_t flags, penstock_range* range);

typedef struct {
  uint64_t address;
  uint64_t bytes;
  uint32_t written; /* the use writes it: it must be copied back when evicted */
  uint32_t reserved;
} penstock_piece;

/* Declare a use: the pieces of ranges that one kernel, module or copy touches together. */
PENSTOCK_API penstock_status penstock_use_define(penstock_pager* pager,
                                                 const penstock_piece* pieces, int32_t count,
                                                 int32_t* use);
/* Begin: all its pages are resident for work given to `stream` from here on (the stream waits, not
 * the caller).  End: all work that touches them has been given to `stream`.  Uses may nest. */
PENSTOCK_API penstock_status penstock_use_begin(penstock_pager* pager, int32_t use,
                                                uint64_t stream);
PENSTOCK_API penstock_status penstock_use_end(penstock_pager* pager, int32_t use, uint64_t stream);
/* The uses since the last call were one iteration: learn it, plan the next. */
PENSTOCK_API penstock_status penstock_iteration(penstock_pager* pager);

/* Bring pieces in and wait for them; copy written pages back to the host and wait. */
PENSTOCK_API penstock_status penstock_fetch(penstock_pager* pager, uint64_t address,
                                            uint64_t bytes);
PENSTOCK_API penstock_status penstock_flush(penstock_pager* pager, uint64_t address,
                                            uint64_t bytes);
/* Change the budget; waits for work in flight when it shrinks.  kOutOfMemory, and no change, when
 * the largest use does not fit. */
PENSTOCK_API penstock_status penstock_pager_resize(penstock_pager* pager, uint64_t budget);
/* The smallest budget that the uses declared so far can run in. */
PENSTOCK_API uint64_t penstock_pager_smallest(penstock_pager* pager);

typedef struct {
  uint64_t struct_size;
  uint64_t bytes_in, bytes_out; /* since creation */
  uint64_t page_uses;
  uint64_t page_hits; /* resident, or on its way, when the use began */
  uint64_t prefetched_pages, demanded_pages;
  uint64_t iterations, plans, mismatches; /* uses that came out of order */
  uint64_t map_calls, unmap_calls, copies;
  uint64_t budget, device_bytes, peak_device_bytes, pinned_bytes, host_bytes, paged_bytes;
  uint64_t pages, slots, kept_pages, streamed_pages, stream_slots, planned_bytes_in;
  uint64_t iteration_bytes_in, iteration_bytes_out; /* of the last whole iteration */
  uint64_t iteration_page_uses, iteration_page_loads;
  uint64_t profiled_iterations;
  double profiled_ms, stall_ms, largest_stall_ms; /* of the last profiled iteration */
  int32_t largest_stall_use;
  int32_t reserved;
} penstock_pager_stats;

PENSTOCK_API penstock_status penstock_pager_get_stats(penstock_pager* pager,
                                                      penstock_pager_stats* stats);

/* ---- Managed memory ----------------------------------------------------------------------- */

/* How a group leaves the device.  COLLAPSE drops the device's duplicate of a ReadMostly span and
 * copies nothing; TO_HOST prefetches to the host. */
enum { PENSTOCK_EVICT_COLLAPSE = 0, PENSTOCK_EVICT_TO_HOST = 1 };

typedef struct {
  uint64_t struct_size;
  uint64_t budget;              /* bytes of device memory for groups */
  uint64_t max_in_flight_bytes; /* of prefetches; 0 = no bound beside the budget */
  int32_t look_ahead;           /* groups on their way beyond the one in use */
  int32_t streams;              /* that prefetches take in turn; 0 = the default stream */
  int32_t eviction;
  int32_t read_mostly; /* booleans; COLLAPSE needs it */
  int32_t on_demand;   /* the driver pages by faults: groups have no uses */
  int32_t allow_oversubscription;
  int32_t profile_every; /* time the stalls of every Nth iteration; 0 = never */
  int32_t reserved;
} penstock_managed_options;

typedef struct {
  uint64_t bytes;
  uint64_t address; /* set by penstock_managed_create(); the host and the device use it alike */
  uint32_t flags;   /* 0, or PENSTOCK_ON_HOST: never on the device, without uses */
  uint32_t reserved;
} penstock_managed_group;

/* Allocate groups of managed memory, which the caller fills before the first use or iteration.
 * kOutOfMemory, and nothing left behind, when the groups or the budget exceed the device's free
 * memory (some drivers hang the GPU when managed memory is oversubscribed) and that is not allowed,
 * or when the budget does not hold the two largest groups. */
PENSTOCK_API penstock_status penstock_managed_create(penstock_device* device,
                                                     const penstock_managed_options* options,
                                                     penstock_managed_group* groups, int32_t count,
                                                     penstock_managed** managed);
/* Waits for all work that it knows of; frees the groups. */
PENSTOCK_API void penstock_managed_destroy(penstock_managed* managed);
/* Begin: the group is resident for work given to `stream` from here on (the stream waits; the
 * caller only where its prefetch has not been issued yet).  End: all work that reads it has been
 * given to `stream`.  Uses may nest.  A group that is read without a use is slow, not fatal. */
PENSTOCK_API penstock_status penstock_managed_begin(penstock_managed* managed, int32_t group,
                                                    uint64_t stream);
PENSTOCK_API penstock_status penstock_managed_end(penstock_managed* managed, int32_t group,
                                                  uint64_t stream);
/* The uses since the last call were one iteration: learn it, plan the next. */
PENSTOCK_API penstock_status penstock_managed_iteration(penstock_managed* managed);
/* Change the budget; waits until what no longer fits is gone. */
PENSTOCK_API penstock_status penstock_managed_resize(penstock_managed* managed, uint64_t budget);
/* The smallest budget for the groups, and for the uses seen so far. */
PENSTOCK_API uint64_t penstock_managed_smallest(penstock_managed* managed);

typedef struct {
  uint64_t struct_size;
  uint64_t bytes_in, bytes_out; /* since creation; a collapse copies nothing out */
  uint64_t evicted_bytes, prefetches, evictions;
  uint64_t group_uses;
  uint64_t group_hits; /* resident, or on its way, when the use began */
  uint64_t stalls;     /* not arrived when the use began */
  uint64_t iterations, plans, mismatches;
  uint64_t budget, device_bytes, peak_device_bytes;
  uint64_t managed_bytes, host_only_bytes;
  uint64_t groups, kept_groups, kept_bytes; /* of the groups that come and go */
  uint64_t planned_bytes_in;
  uint64_t iteration_bytes_in, iteration_bytes_out; /* of the last whole iteration */
  uint64_t iteration_group_uses, iteration_group_hits, iteration_stalls;
  uint64_t profiled_iterations;
  double profiled_ms, stall_ms, largest_stall_ms; /* of the last profiled iteration */
  int32_t largest_stall_group;
  int32_t look_ahead; /* what the budget allows of the one asked for */
} penstock_managed_stats;

PENSTOCK_API penstock_status penstock_managed_get_stats(penstock_managed* managed,
                                                        penstock_managed_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_PENSTOCK_H_ */
