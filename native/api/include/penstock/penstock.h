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
typedef struct penstock_allocator penstock_allocator;

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
  int64_t fail_at_call; /* the Nth driver call fails; -N: and all after it; 0 = none */
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
/* Let the CUDA device with this ordinal read and write this one's memory: what is mapped now, and
 * what will be.  PENSTOCK_UNSUPPORTED where it cannot reach it. */
PENSTOCK_API penstock_status penstock_share(penstock_device* device, int32_t ordinal);
PENSTOCK_API penstock_status penstock_live(penstock_device* device, penstock_live_counts* counts);
/* Driver calls made so far that can fail (emulated GPU only, else 0): for fault injection. */
PENSTOCK_API int64_t penstock_driver_calls(penstock_device* device);
/* Copy `bytes` of page-locked memory `repeats` times each way; GB/s (decimal), best of them. */
PENSTOCK_API penstock_status penstock_measure_link(penstock_device* device, uint64_t bytes,
                                                   int32_t repeats, double* in_gb_per_s,
                                                   double* out_gb_per_s);

/* ---- The pager ---------------------------------------------------------------------------- */

/* What happens to an evicted page's address.  NORMAL unmaps it before its memory holds anything
 * else, and maps a page's once its content has arrived: a kernel that touches a block it did not
 * declare finds the block's own data, or faults.  STRICT does the same here.  FAST leaves addresses
 * mapped, so that the host waits for nothing and a steady iteration makes no mapping call: such a
 * kernel may find other data. */
enum { PENSTOCK_SAFETY_NORMAL = 0, PENSTOCK_SAFETY_STRICT = 1, PENSTOCK_SAFETY_FAST = 2 };

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
  double link_gb_per_s; /* measured, in; where compute sets the pace, plans then look ahead up to
                           4 times as far; 0 = unknown */
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
/* The uses since the last call were one iteration: learn it, plan the next, which is of this kind.
 * An order is kept for each kind that the caller tells apart, such as encoding and decoding. */
PENSTOCK_API penstock_status penstock_iteration(penstock_pager* pager, int64_t kind, uint64_t work);

/* Whether the page is there in which the address lies, of a paged range; waits while it moves. */
PENSTOCK_API penstock_status penstock_is_resident(penstock_pager* pager, uint64_t address,
                                                  int32_t* resident);
/* Bring pieces in and wait for them; copy written pages back to the host and wait. */
PENSTOCK_API penstock_status penstock_fetch(penstock_pager* pager, uint64_t address,
                                            uint64_t bytes);
PENSTOCK_API penstock_status penstock_flush(penstock_pager* pager, uint64_t address,
                                            uint64_t bytes);
/* The content of a piece is not needed any more, until a use writes it: of its pages, those that
 * lie in it whole are neither copied out when they leave nor in when they come.  Waits for nothing.
 */
PENSTOCK_API penstock_status penstock_forget(penstock_pager* pager, uint64_t address,
                                             uint64_t bytes);
/* The pages of a piece are not needed soon: they are the first to leave, until a use has them. */
PENSTOCK_API penstock_status penstock_cool(penstock_pager* pager, uint64_t address, uint64_t bytes);
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
  uint64_t encoded_bytes, code_bytes; /* of blocks that are encoded on the host, and of the codes */
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

/* ---- The stitching allocator -------------------------------------------------------------- */

typedef struct {
  uint64_t struct_size;
  uint64_t budget;       /* bytes of device memory it may hold; 0 = all that the device has */
  uint64_t chunk_bytes;  /* of the smallest chunks; 0 = default */
  uint64_t growth_bytes; /* mapped at once while memory is growing fast; 0 = default */
  uint64_t stitch_limit; /* requests below it are never stitched; 0 = default */
  uint64_t range_limit;  /* bytes of addresses that stitched ranges may span; 0 = default */
  double reuse_limit;    /* a range up to so many times a request may serve it; 0 = default */
  int32_t stitch_when;   /* PENSTOCK_STITCH_FIRST, ... */
  int32_t grow_exactly;  /* not 0: a stitch may join old chunks and new ones */
  uint64_t largest_chunk_bytes; /* 0 = default */
} penstock_allocator_options;

enum {
  PENSTOCK_STITCH_FIRST = 0,         /* before the device is asked for more */
  PENSTOCK_STITCH_WHEN_FULL = 1,     /* after the device, or the budget, had no more */
  PENSTOCK_STITCH_AFTER_RELEASE = 2, /* after cached chunks were given back as well */
  PENSTOCK_STITCH_NEVER = 3
};

PENSTOCK_API penstock_status penstock_allocator_create(penstock_device* device,
                                                       const penstock_allocator_options* options,
                                                       penstock_allocator** allocator);
/* Waits for all streams it knows of; blocks still allocated become invalid. */
PENSTOCK_API void penstock_allocator_destroy(penstock_allocator* allocator);
/* `size` bytes for work given to `stream`, aligned to 512.  Bytes freed by another stream are
 * handed out only behind an event of that stream.  kOutOfMemory, with the numbers, after cached
 * memory was given back and retried; the allocator stays usable. */
PENSTOCK_API penstock_status penstock_allocate(penstock_allocator* allocator, uint64_t size,
                                               uint64_t stream, uint64_t* address);
/* All work on the block has been given to its stream, or to streams named by record_stream. */
PENSTOCK_API penstock_status penstock_free(penstock_allocator* allocator, uint64_t address);
/* `stream` uses the block too: it is not handed out again before that work is done. */
PENSTOCK_API penstock_status penstock_record_stream(penstock_allocator* allocator, uint64_t address,
                                                    uint64_t stream);
/* Give all free chunks back to the device, and all unused stitched ranges; waits for their use. */
PENSTOCK_API penstock_status penstock_empty_cache(penstock_allocator* allocator);
/* Change the cap on device memory; what is held beyond it stays until it is free. */
PENSTOCK_API penstock_status penstock_allocator_set_budget(penstock_allocator* allocator,
                                                           uint64_t budget);

/* Private pools, for graph capture.  Between begin and end, allocations on streams that `matches`
 * accepts (NULL: every stream) come from the pool {high, low}, which shares no memory with others.
 * After release, and once its blocks are freed, its memory goes back. */
typedef int32_t (*penstock_stream_filter)(uint64_t stream, void* user);
PENSTOCK_API penstock_status penstock_pool_begin(penstock_allocator* allocator, uint64_t high,
                                                 uint64_t low, penstock_stream_filter matches,
                                                 void* user);
PENSTOCK_API penstock_status penstock_pool_end(penstock_allocator* allocator, uint64_t high,
                                               uint64_t low);
PENSTOCK_API penstock_status penstock_pool_release(penstock_allocator* allocator, uint64_t high,
                                                   uint64_t low);

typedef struct {
  int64_t current, peak, allocated, freed; /* the last two since creation or reset_accumulated */
} penstock_stat;

/* Names as in torch.cuda.memory_stats(); [0] all, [1] up to 1 MiB (small), [2] larger. */
typedef struct {
  uint64_t struct_size;
  penstock_stat requested_bytes[3]; /* of blocks handed out and not yet reusable */
  penstock_stat allocated_bytes[3]; /* the same, rounded to 512, until free() */
  penstock_stat active_bytes[3];    /* ... until their last use on any stream is over */
  penstock_stat inactive_bytes[3];  /* reserved and not active, beside active blocks of a chunk */
  penstock_stat reserved_bytes[3];  /* device memory held: chunks */
  penstock_stat allocations[3];     /* blocks */
  penstock_stat active_blocks[3];
  penstock_stat inactive_blocks[3];
  penstock_stat chunks;
  penstock_stat stitched_ranges;      /* kept, in use or not */
  penstock_stat stitched_range_bytes; /* of addresses */
  int64_t retries;                    /* allocations that had to give cached memory back */
  int64_t out_of_memory;
  int64_t stitches, stitch_hits; /* ranges made; allocations served by one made before */
  int64_t stream_waits;          /* allocations that had to wait for another stream's work */
  int64_t driver_calls;          /* all calls that create, map, unmap or set access */
  uint64_t budget, device_free, device_total;
} penstock_allocator_stats;

PENSTOCK_API penstock_status penstock_allocator_get_stats(penstock_allocator* allocator,
                                                          penstock_allocator_stats* stats);
PENSTOCK_API penstock_status penstock_allocator_reset_peaks(penstock_allocator* allocator);
PENSTOCK_API penstock_status penstock_allocator_reset_accumulated(penstock_allocator* allocator);

/* One piece of device memory: runs of chunks are tiled by them without a gap. */
enum { PENSTOCK_FREE = 0, PENSTOCK_ALLOCATED = 1, PENSTOCK_AWAITING_FREE = 2 };
typedef struct {
  uint64_t segment; /* where its run of chunks is mapped in order; and how long that is */
  uint64_t segment_bytes;
  uint64_t address; /* of the piece in that run */
  uint64_t bytes;
  uint64_t block;           /* the program's address of the block; 0 if free */
  uint64_t block_offset;    /* of this piece in the block: a stitched one has several */
  uint64_t requested_bytes; /* of the block, where block_offset is 0; else 0 */
  uint64_t stream;
  uint64_t pool_high, pool_low;
  int32_t state;
  int32_t stitched;
} penstock_piece_info;

/* Up to `capacity` pieces, ordered by address; *count is how many there are. */
PENSTOCK_API penstock_status penstock_allocator_pieces(penstock_allocator* allocator,
                                                       penstock_piece_info* pieces,
                                                       uint64_t capacity, uint64_t* count);

/* What happened, for torch.cuda.memory._record_memory_history(): the last `capacity` events are
 * kept; 0 ends it.  `time_ns` is CLOCK_REALTIME. */
enum {
  PENSTOCK_EVENT_ALLOC = 0,
  PENSTOCK_EVENT_FREE_REQUESTED = 1,
  PENSTOCK_EVENT_FREE_COMPLETED = 2,
  PENSTOCK_EVENT_SEGMENT_MAP = 3,   /* chunks mapped where they lie in order */
  PENSTOCK_EVENT_SEGMENT_UNMAP = 4, /* chunks given back */
  PENSTOCK_EVENT_STITCH = 5,        /* a stitched range made */
  PENSTOCK_EVENT_UNSTITCH = 6,
  PENSTOCK_EVENT_OOM = 7 /* bytes: the request; address: the device's free bytes */
};
typedef struct {
  int64_t time_ns;
  uint64_t address;
  uint64_t bytes; /* rounded to 512 */
  uint64_t requested_bytes;
  uint64_t stream;
  uint64_t pool_high, pool_low;
  uint64_t context; /* what the callback below returned */
  int32_t event;
  int32_t reserved;
} penstock_history_event;
/* Called on the allocating thread, outside all locks, before an event is added; may be NULL. */
typedef uint64_t (*penstock_context_callback)(int32_t event, void* user);
PENSTOCK_API penstock_status penstock_allocator_record_history(penstock_allocator* allocator,
                                                               uint64_t capacity,
                                                               penstock_context_callback context,
                                                               void* user);
/* The events kept, oldest first, as pieces() does it. */
PENSTOCK_API penstock_status penstock_allocator_history(penstock_allocator* allocator,
                                                        penstock_history_event* events,
                                                        uint64_t capacity, uint64_t* count);

/* ---- Replay of traces --------------------------------------------------------------------- */

/* A recorded trace: `count` entries in each array, one entry an event, in the order of time.
 * op: 0 allocate, 1 free requested while another stream uses the block, 2 free completed. */
typedef struct {
  uint64_t struct_size;
  uint64_t count;
  const uint8_t* op;
  const uint32_t* id;
  const uint64_t* bytes; /* as the program asked for them */
  const uint32_t* stream;
  const uint64_t* time_us;
} penstock_trace;

enum { PENSTOCK_REPLAY_STITCH = 0, PENSTOCK_REPLAY_NATIVE = 1, PENSTOCK_REPLAY_EXPANDABLE = 2 };

typedef struct {
  uint64_t struct_size;
  uint64_t capacity;    /* device memory; 0 = as much as it takes */
  uint64_t granularity; /* of device memory; 0 = 2 MiB */
  double create_us;     /* what the driver's calls cost for a chunk: creating it, */
  double map_us;        /* mapping it, */
  double set_access_us; /* giving access to it, */
  double unmap_us;      /* unmapping it, */
  double release_us;    /* releasing it */
  int32_t allocator;    /* PENSTOCK_REPLAY_STITCH, ... */
  int32_t reserved;
} penstock_replay_options;

typedef struct {
  uint64_t time_us;   /* since the trace began */
  uint64_t requested; /* the most since the point before */
  uint64_t reserved;  /* bytes of device memory at that time */
} penstock_replay_point;

typedef struct {
  uint64_t struct_size;
  uint64_t events;
  uint64_t allocations;
  uint64_t frees;
  uint64_t failed_event; /* at which the capacity did not suffice; UINT64_MAX: none */
  uint64_t peak_requested_bytes;
  uint64_t peak_reserved_bytes;
  int64_t map_calls;
  int64_t stitches;
  int64_t stitch_hits;
  double modelled_driver_ms;
  double modelled_driver_ms_second_half; /* of the trace by time */
  double trace_ms;
  double ns_per_op; /* time in the allocator, an allocation or a free */
  uint64_t points;  /* written to the curve */
} penstock_replay_result;

/* The options with their defaults filled in: the costs are those measured on an H200. */
PENSTOCK_API penstock_status penstock_replay_defaults(penstock_replay_options* options);
/* Replays a trace without any memory.  `packing` is for PENSTOCK_REPLAY_STITCH, its budget being
 * the capacity; it and `options` may be NULL.  Up to `capacity` points of the curve of requested
 * and reserved memory over time are written.  What cannot have happened, such as an id that is
 * freed without having been allocated, is PENSTOCK_INVALID_ARGUMENT with the event. */
PENSTOCK_API penstock_status penstock_replay(const penstock_trace* trace,
                                             const penstock_replay_options* options,
                                             const penstock_allocator_options* packing,
                                             penstock_replay_point* curve, uint64_t capacity,
                                             penstock_replay_result* result);

#ifdef __cplusplus
}
#endif

#include "penstock/budget.h"
#include "penstock/packing.h"
#include "penstock/simulate.h"

#endif /* PENSTOCK_PENSTOCK_H_ */
