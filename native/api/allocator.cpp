// SPDX-License-Identifier: Apache-2.0
// The C API for the stitching allocator: a thin coat over engine::Allocator.
#include <algorithm>
#include <vector>

#include "api/handles.hpp"

namespace penstock::api {

using policy::packing::StitchWhen;

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
  if (from.stitch_when < PENSTOCK_STITCH_FIRST || from.stitch_when > PENSTOCK_STITCH_NEVER) {
    return Status(Code::kInvalidArgument, "stitch_when is none of PENSTOCK_STITCH_*");
  }
  to.packing.stitch_when = static_cast<StitchWhen>(from.stitch_when);
  to.packing.grow_exactly = from.grow_exactly != 0;
  return to;
}

namespace {

Status missing_allocator() { return {Code::kInvalidArgument, "the allocator is null"}; }

driver::Stream to_stream(uint64_t stream) { return static_cast<driver::Stream>(stream); }

penstock_stat to_c(const engine::Stat& from) {
  return {from.current, from.peak, from.allocated, from.freed};
}

void to_c(const engine::StatBySize& from, penstock_stat* to) {
  for (std::size_t i = 0; i < from.of.size(); ++i) to[i] = to_c(from.of[i]);
}

penstock_allocator_stats to_c(const engine::AllocatorStats& from) {
  penstock_allocator_stats to{};
  to_c(from.requested_bytes, to.requested_bytes);
  to_c(from.allocated_bytes, to.allocated_bytes);
  to_c(from.active_bytes, to.active_bytes);
  to_c(from.reserved_bytes, to.reserved_bytes);
  to_c(from.allocations, to.allocations);
  to_c(from.active_blocks, to.active_blocks);
  // What is reserved and not active; its peak is not kept.
  const int64_t inactive = from.reserved_bytes.of[0].current - from.active_bytes.of[0].current;
  for (const int size : {0, 2}) {
    to.inactive_bytes[size].current = to.inactive_bytes[size].peak = inactive;
    to.inactive_blocks[size].current = to.inactive_blocks[size].peak = from.inactive_blocks;
  }
  to.chunks = to_c(from.chunks);
  to.stitched_ranges = to_c(from.stitched_ranges);
  to.stitched_range_bytes = to_c(from.stitched_range_bytes);
  to.retries = from.retries;
  to.out_of_memory = from.out_of_memory;
  to.stitches = from.stitches;
  to.stitch_hits = from.stitch_hits;
  to.stream_waits = from.stream_waits;
  to.driver_calls = from.driver_calls;
  to.budget = from.budget;
  to.device_free = from.device_free;
  to.device_total = from.device_total;
  return to;
}

penstock_piece_info to_c(const engine::PieceInfo& from) {
  penstock_piece_info to{};
  to.segment = from.segment;
  to.segment_bytes = from.segment_bytes;
  to.address = from.address;
  to.bytes = from.bytes;
  to.block = from.block;
  to.block_offset = from.block_offset;
  to.requested_bytes = from.requested;
  to.stream = from.stream;
  to.pool_high = from.pool.high;
  to.pool_low = from.pool.low;
  to.state = static_cast<int32_t>(from.state);
  to.stitched = from.stitched ? 1 : 0;
  return to;
}

penstock_history_event to_c(const engine::AllocationRecord& from) {
  penstock_history_event to{};
  to.time_ns = from.time_ns;
  to.address = from.address;
  to.bytes = from.bytes;
  to.requested_bytes = from.requested;
  to.stream = from.stream;
  to.pool_high = from.pool_high;
  to.pool_low = from.pool_low;
  to.context = from.context;
  to.event = static_cast<int32_t>(from.event);
  return to;
}

// Up to `capacity` of them; *count tells how many there are.
template <class From, class To>
Status list(const std::vector<From>& from, To* to, uint64_t capacity, uint64_t* count) {
  if (count == nullptr || (to == nullptr && capacity > 0)) {
    return {Code::kInvalidArgument, "a list needs a place for its entries and their count"};
  }
  *count = from.size();
  for (std::size_t i = 0; i < std::min<std::size_t>(capacity, from.size()); ++i) {
    to[i] = to_c(from[i]);
  }
  return {};
}

}  // namespace
}  // namespace penstock::api

using namespace penstock;       // NOLINT(google-build-using-namespace)
using namespace penstock::api;  // NOLINT(google-build-using-namespace)

extern "C" {

penstock_status penstock_allocator_defaults(penstock_device* device,
                                            penstock_allocator_options* options) {
  return guard([&]() -> Status {
    if (device == nullptr) return {Code::kInvalidArgument, "the device is null"};
    const engine::AllocatorOptions defaults;
    penstock_allocator_options to{};
    to.budget = device->driver->info().total;
    to.chunk_bytes = defaults.packing.smallest_chunk;
    to.largest_chunk_bytes = defaults.packing.largest_chunk;
    to.growth_bytes = defaults.packing.growth_bytes;
    to.stitch_limit = defaults.packing.stitch_limit;
    to.range_limit = defaults.packing.range_limit;
    to.reuse_limit = defaults.packing.reuse_limit;
    to.stitch_when = static_cast<int32_t>(defaults.packing.stitch_when);
    to.grow_exactly = defaults.packing.grow_exactly ? 1 : 0;
    return write_struct(to, options);
  });
}

penstock_status penstock_allocator_create(penstock_device* device,
                                          const penstock_allocator_options* options,
                                          penstock_allocator** allocator) {
  return guard([&]() -> Status {
    if (device == nullptr || allocator == nullptr) return missing_allocator();
    penstock_allocator_options from{};
    from.grow_exactly = 1;
    if (options != nullptr) from = read_struct(options);
    PENSTOCK_ASSIGN(const engine::AllocatorOptions to, from_c(from));
    PENSTOCK_ASSIGN(auto made, engine::Allocator::create(*device->driver, to));
    *allocator = new penstock_allocator{std::move(made)};
    return {};
  });
}

void penstock_allocator_destroy(penstock_allocator* allocator) { delete allocator; }

penstock_status penstock_allocate(penstock_allocator* allocator, uint64_t size, uint64_t stream,
                                  uint64_t* address) {
  return guard([&]() -> Status {
    if (allocator == nullptr || address == nullptr) return missing_allocator();
    PENSTOCK_ASSIGN(*address, allocator->allocator->allocate(size, to_stream(stream)));
    return {};
  });
}

penstock_status penstock_free(penstock_allocator* allocator, uint64_t address) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->free(address);
  });
}

penstock_status penstock_record_stream(penstock_allocator* allocator, uint64_t address,
                                       uint64_t stream) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->record_stream(address, to_stream(stream));
  });
}

penstock_status penstock_empty_cache(penstock_allocator* allocator) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->empty_cache();
  });
}

penstock_status penstock_allocator_set_budget(penstock_allocator* allocator, uint64_t budget) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->set_budget(budget);
  });
}

penstock_status penstock_pool_begin(penstock_allocator* allocator, uint64_t high, uint64_t low,
                                    penstock_stream_filter matches, void* user) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    engine::Allocator::StreamFilter filter;
    if (matches != nullptr) {
      filter = [matches, user](driver::Stream stream) {
        return matches(static_cast<uint64_t>(stream), user) != 0;
      };
    }
    return allocator->allocator->begin_pool({high, low}, std::move(filter));
  });
}

penstock_status penstock_pool_end(penstock_allocator* allocator, uint64_t high, uint64_t low) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->end_pool({high, low});
  });
}

penstock_status penstock_pool_release(penstock_allocator* allocator, uint64_t high, uint64_t low) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return allocator->allocator->release_pool({high, low});
  });
}

penstock_status penstock_allocator_get_stats(penstock_allocator* allocator,
                                             penstock_allocator_stats* stats) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return write_struct(to_c(allocator->allocator->stats()), stats);
  });
}

penstock_status penstock_allocator_reset_peaks(penstock_allocator* allocator) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    allocator->allocator->reset_peaks();
    return {};
  });
}

penstock_status penstock_allocator_reset_accumulated(penstock_allocator* allocator) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    allocator->allocator->reset_accumulated();
    return {};
  });
}

penstock_status penstock_allocator_pieces(penstock_allocator* allocator,
                                          penstock_piece_info* pieces, uint64_t capacity,
                                          uint64_t* count) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return list(allocator->allocator->pieces(), pieces, capacity, count);
  });
}

penstock_status penstock_allocator_record_history(penstock_allocator* allocator, uint64_t capacity,
                                                  penstock_context_callback context, void* user) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    engine::Allocator::ContextCallback callback;
    if (context != nullptr) {
      callback = [context, user](engine::AllocationEvent event) {
        return context(static_cast<int32_t>(event), user);
      };
    }
    allocator->allocator->record_history(capacity, std::move(callback));
    return {};
  });
}

penstock_status penstock_allocator_history(penstock_allocator* allocator,
                                           penstock_history_event* events, uint64_t capacity,
                                           uint64_t* count) {
  return guard([&]() -> Status {
    if (allocator == nullptr) return missing_allocator();
    return list(allocator->allocator->history(), events, capacity, count);
  });
}

}  // extern "C"
