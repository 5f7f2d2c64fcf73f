// SPDX-License-Identifier: Apache-2.0
// The C API for the stitching allocator: a thin coat over engine::Allocator.
#include <algorithm>
#include <vector>

#include "api/handles.hpp"

namespace penstock::api {

Result<engine::AllocatorOptions> from_c(const penstock_allocator_options& from) {
  engine::AllocatorOptions to;
  to.budget = from.budget;
  if (from.chunk_bytes != 0) to.packing.smallest_chunk = from.chunk_bytes;
  to.packing.largest_chunk = from.largest_chunk_bytes != 0
                                 ? from.largest_chunk_bytes
                                 : std::max(to.packing.largest_chunk, to.packing.smallest_chunk);
  if (from.growth_bytes != 0) to.packing.growth_bytes = from.growth_bytes;
  if (from.stitch_limit != 0) to.packing.stitch_limit = from.stitch_limit;
  if (from.range_limit != 0) to.packing.range_limit = from.range_limit;
  if (from.reuse_limit != 0) to.packing.reuse_limit = from.reuse_limit;
  PENSTOCK_ASSIGN(to.packing.stitch_when,
                  to_enum("stitch_when", from.stitch_when, policy::packing::StitchWhen::kNever));
  to.packing.grow_exactly = from.grow_exactly != 0;
  return to;
}

namespace {

penstock_stat to_c(const engine::Stat& from) {
  return {from.current, from.peak, from.allocated, from.freed};
}

penstock_allocator_stats to_c(const engine::AllocatorStats& from) {
  penstock_allocator_stats to{};
  for (std::size_t i = 0; i < from.active_bytes.of.size(); ++i) {
    to.requested_bytes[i] = to_c(from.requested_bytes.of[i]);
    to.allocated_bytes[i] = to_c(from.allocated_bytes.of[i]);
    to.active_bytes[i] = to_c(from.active_bytes.of[i]);
    to.reserved_bytes[i] = to_c(from.reserved_bytes.of[i]);
    to.allocations[i] = to_c(from.allocations.of[i]);
    to.active_blocks[i] = to_c(from.active_blocks.of[i]);
  }
  // What is reserved and not active; its peak is not kept.
  const int64_t inactive = from.reserved_bytes.of[0].current - from.active_bytes.of[0].current;
  for (const int size : {0, 2}) {
    to.inactive_bytes[size].current = to.inactive_bytes[size].peak = inactive;
    to.inactive_blocks[size].current = to.inactive_blocks[size].peak = from.inactive_blocks;
  }
  to.chunks = to_c(from.chunks);
  to.stitched_ranges = to_c(from.stitched_ranges);
  to.stitched_range_bytes = to_c(from.stitched_range_bytes);
  PENSTOCK_COPY_FIELDS(to, from, retries, out_of_memory, stitches, stitch_hits, stream_waits,
                       driver_calls, budget, device_free, device_total)
  return to;
}

penstock_piece_info to_c(const engine::PieceInfo& from) {
  penstock_piece_info to{};
  PENSTOCK_COPY_FIELDS(to, from, segment, segment_bytes, address, bytes, block, block_offset,
                       stream, stitched)
  to.requested_bytes = from.requested;
  to.pool_high = from.pool.high;
  to.pool_low = from.pool.low;
  to.state = static_cast<int32_t>(from.state);
  return to;
}

penstock_history_event to_c(const engine::AllocationRecord& from) {
  penstock_history_event to{};
  PENSTOCK_COPY_FIELDS(to, from, time_ns, address, bytes, stream, pool_high, pool_low, context)
  to.requested_bytes = from.requested;
  to.event = static_cast<int32_t>(from.event);
  return to;
}

// Up to `capacity` of them; *count tells how many there are.
template <class From, class To>
Status list(const std::vector<From>& from, To* to, uint64_t capacity, uint64_t* count) {
  if (count == nullptr || (to == nullptr && capacity > 0)) {
    return invalid("a list needs a place for its entries and their count");
  }
  *count = from.size();
  for (std::size_t i = 0; i < std::min<std::size_t>(capacity, from.size()); ++i) {
    to[i] = to_c(from[i]);
  }
  return {};
}

}  // namespace
}  // namespace penstock::api

penstock_status penstock_allocator_create(penstock_device* device,
                                          const penstock_allocator_options* options,
                                          penstock_allocator** allocator) {
  using Made = Result<std::unique_ptr<engine::Allocator>>;
  return make(device, allocator, [&](driver::Driver& driver) -> Made {
    penstock_allocator_options from{};
    from.grow_exactly = 1;
    if (options != nullptr) from = read_struct(options);
    PENSTOCK_ASSIGN(const engine::AllocatorOptions to, from_c(from));
    return engine::Allocator::create(driver, to);
  });
}

void penstock_allocator_destroy(penstock_allocator* allocator) { delete allocator; }

penstock_status penstock_allocate(penstock_allocator* allocator, uint64_t size, uint64_t stream,
                                  uint64_t* address) {
  return with(allocator, [&](auto& it) -> Status {
    if (address == nullptr) return missing("the place for the address");
    PENSTOCK_ASSIGN(*address, it.allocate(size, to_stream(stream)));
    return {};
  });
}

PENSTOCK_FORWARD(penstock_free, penstock_allocator, it.free(address), uint64_t address)
PENSTOCK_FORWARD(penstock_record_stream, penstock_allocator,
                 it.record_stream(address, to_stream(stream)), uint64_t address, uint64_t stream)
PENSTOCK_FORWARD(penstock_empty_cache, penstock_allocator, it.empty_cache())
PENSTOCK_FORWARD(penstock_allocator_set_budget, penstock_allocator, it.set_budget(budget),
                 uint64_t budget)

penstock_status penstock_pool_begin(penstock_allocator* allocator, uint64_t high, uint64_t low,
                                    penstock_stream_filter matches, void* user) {
  return with(allocator, [&](auto& it) -> Status {
    engine::Allocator::StreamFilter filter;
    if (matches != nullptr) {
      filter = [matches, user](driver::Stream stream) {
        return matches(static_cast<uint64_t>(stream), user) != 0;
      };
    }
    return it.begin_pool({high, low}, std::move(filter));
  });
}

PENSTOCK_FORWARD(penstock_pool_end, penstock_allocator, it.end_pool({high, low}), uint64_t high,
                 uint64_t low)
PENSTOCK_FORWARD(penstock_pool_release, penstock_allocator, it.release_pool({high, low}),
                 uint64_t high, uint64_t low)

PENSTOCK_FORWARD(penstock_allocator_get_stats, penstock_allocator,
                 write_struct(to_c(it.stats()), stats), penstock_allocator_stats* stats)

PENSTOCK_FORWARD(penstock_allocator_reset_peaks, penstock_allocator, it.reset_peaks())
PENSTOCK_FORWARD(penstock_allocator_reset_accumulated, penstock_allocator, it.reset_accumulated())

PENSTOCK_FORWARD(penstock_allocator_pieces, penstock_allocator,
                 list(it.pieces(), pieces, capacity, count), penstock_piece_info* pieces,
                 uint64_t capacity, uint64_t* count)

penstock_status penstock_allocator_record_history(penstock_allocator* allocator, uint64_t capacity,
                                                  penstock_context_callback context, void* user) {
  return with(allocator, [&](auto& it) -> Status {
    engine::Allocator::ContextCallback callback;
    if (context != nullptr) {
      callback = [context, user](engine::AllocationEvent event) {
        return context(static_cast<int32_t>(event), user);
      };
    }
    it.record_history(capacity, std::move(callback));
    return {};
  });
}

PENSTOCK_FORWARD(penstock_allocator_history, penstock_allocator,
                 list(it.history(), events, capacity, count), penstock_history_event* events,
                 uint64_t capacity, uint64_t* count)
