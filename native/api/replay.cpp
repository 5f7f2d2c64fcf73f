// SPDX-License-Identifier: Apache-2.0
// The C API for replays of traces: a thin coat over engine::replay().
#include "lab/replay.hpp"

#include <chrono>

#include "api/handles.hpp"

namespace penstock::api {
namespace {

// Without a capacity a replay gets more than any device has.
constexpr Bytes kNoLimit = kTiB;

std::int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

penstock_replay_options replay_defaults() {
  const driver::DriverCosts costs = engine::kReplayCosts;
  penstock_replay_options options{};
  options.struct_size = sizeof(options);
  options.granularity = 2 * kMiB;
  PENSTOCK_COPY_FIELDS(options, costs, create_us, map_us, set_access_us, unmap_us, release_us)
  options.allocator = PENSTOCK_REPLAY_STITCH;
  return options;
}

Result<engine::Trace> trace_of(const penstock_trace& from) {
  if (from.count > 0 && (from.op == nullptr || from.id == nullptr || from.bytes == nullptr ||
                         from.stream == nullptr || from.time_us == nullptr)) {
    return invalid("an array of the trace is null");
  }
  engine::Trace trace;
  trace.op = {from.op, from.count};
  trace.id = {from.id, from.count};
  trace.bytes = {from.bytes, from.count};
  trace.stream = {from.stream, from.count};
  trace.time_us = {from.time_us, from.count};
  return trace;
}

Result<engine::ReplaySubjectOptions> subject_of(const penstock_replay_options& from,
                                                const penstock_allocator_options* packing) {
  engine::ReplaySubjectOptions to;
  PENSTOCK_ASSIGN(to.allocator,
                  to_enum("allocator", from.allocator, engine::ReplayAllocator::kExpandable));
  if (from.granularity != 0) to.granularity = from.granularity;
  to.capacity = from.capacity != 0 ? from.capacity
                                   : std::min(kNoLimit, driver::kMostGranules * to.granularity);
  PENSTOCK_TRY(check_costs(
      {from.create_us, from.map_us, from.set_access_us, from.unmap_us, from.release_us}));
  to.costs = {from.create_us, from.map_us, from.set_access_us, from.unmap_us, from.release_us};
  if (packing != nullptr) {
    PENSTOCK_ASSIGN(const engine::AllocatorOptions wanted, from_c(read_struct(packing)));
    to.packing = wanted.packing;
  }
  return to;
}

penstock_replay_result to_c(const engine::ReplayResult& from) {
  penstock_replay_result to{};
  PENSTOCK_COPY_FIELDS(to, from, events, allocations, frees, failed_event, map_calls, stitches,
                       stitch_hits, modelled_driver_ms, modelled_driver_ms_second_half, trace_ms,
                       ns_per_op)
  to.peak_requested_bytes = from.peak_requested;
  to.peak_reserved_bytes = from.peak_reserved;
  return to;
}

}  // namespace
}  // namespace penstock::api

penstock_status penstock_replay_defaults(penstock_replay_options* options) {
  return guard([&]() -> Status { return write_struct(replay_defaults(), options); });
}

penstock_status penstock_replay(const penstock_trace* trace, const penstock_replay_options* options,
                                const penstock_allocator_options* packing,
                                penstock_replay_point* curve, uint64_t capacity,
                                penstock_replay_result* result) {
  return guard([&]() -> Status {
    if (trace == nullptr) return invalid("the trace is null");
    const penstock_replay_options from =
        options != nullptr ? read_struct(options) : replay_defaults();
    PENSTOCK_ASSIGN(const engine::Trace events, trace_of(read_struct(trace)));
    engine::ReplayOptions wanted;
    PENSTOCK_ASSIGN(wanted.subject, subject_of(from, packing));
    wanted.points = curve != nullptr ? capacity : 0;
    wanted.now_ns = &steady_ns;
    PENSTOCK_ASSIGN(const engine::ReplayResult found, engine::replay(events, wanted));
    penstock_replay_result out = to_c(found);
    out.points = std::min<uint64_t>(found.curve.size(), wanted.points);
    for (uint64_t i = 0; i < out.points; ++i) {
      curve[i] = {found.curve[i].time_us, found.curve[i].requested, found.curve[i].reserved};
    }
    return write_struct(out, result);
  });
}
