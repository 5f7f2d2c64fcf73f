// SPDX-License-Identifier: Apache-2.0
// The C API for simulations of recorded programs: a thin coat over engine::simulate().
#include "lab/simulate.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "api/handles.hpp"

namespace penstock::api {
namespace {

static_assert(sizeof(penstock_work_record) == sizeof(engine::WorkRecord));
static_assert(offsetof(penstock_work_record, kind) == offsetof(engine::WorkRecord, kind));
static_assert(offsetof(penstock_work_record, number) == offsetof(engine::WorkRecord, number));
static_assert(offsetof(penstock_work_record, at) == offsetof(engine::WorkRecord, at));
static_assert(offsetof(penstock_work_record, value) == offsetof(engine::WorkRecord, value));

penstock_simulate_options simulate_defaults() {
  const driver::DriverCosts costs;
  const driver::ModelledDriverOptions machine;
  penstock_simulate_options options{};
  options.struct_size = sizeof(options);
  options.granularity = 2 * kMiB;
  options.link_gb_per_s = machine.link_gb_per_s;
  PENSTOCK_COPY_FIELDS(options, costs, create_us, map_us, set_access_us, unmap_us)
  return options;
}

Result<engine::SimulateOptions> options_of(const penstock_simulate_options& from) {
  engine::SimulateOptions to;
  PENSTOCK_ASSIGN(to.policy, to_enum("policy", from.policy, engine::SimulatePolicy::kBelady));
  PENSTOCK_TRY(check_costs({from.create_us, from.map_us, from.set_access_us, from.unmap_us}));
  PENSTOCK_COPY_FIELDS(to, from, budget, recorded_budget, device_bytes, page_bytes, steps,
                       kernels_write, link_gb_per_s)
  if (from.granularity != 0) to.granularity = from.granularity;
  to.costs = {from.create_us, from.map_us, from.set_access_us, from.unmap_us, 0};
  return to;
}

penstock_simulate_step to_c(const engine::SimulatedStep& from) {
  return {from.ms,        from.recorded_ms, from.least_ms,   from.bytes_in,
          from.bytes_out, from.page_uses,   from.page_loads, from.least.in,
          from.least.out, from.first_piece, from.end_piece};
}

penstock_simulate_span to_c(const driver::BusySpan& from) {
  return {static_cast<uint64_t>(from.lane), static_cast<double>(from.begin) / 1e6,
          static_cast<double>(from.end) / 1e6};
}

penstock_simulate_result to_c(const engine::SimulateResult& from) {
  penstock_simulate_result to{};
  PENSTOCK_COPY_FIELDS(to, from, pieces, blocks, page_bytes, ahead, demanded, failed_piece,
                       failed_bytes)
  to.steps = from.steps.size();
  to.spans = from.spans.size();
  to.peak_bytes = from.peak;
  return to;
}

}  // namespace
}  // namespace penstock::api

penstock_status penstock_simulate_defaults(penstock_simulate_options* options) {
  return guard([&]() -> Status { return write_struct(simulate_defaults(), options); });
}

penstock_status penstock_simulate(const penstock_work_record* records, uint64_t count,
                                  const penstock_simulate_options* options,
                                  penstock_simulate_step* steps, uint64_t capacity,
                                  penstock_simulate_span* spans, uint64_t span_capacity,
                                  penstock_simulate_result* result) {
  return guard([&]() -> Status {
    if ((records == nullptr && count > 0) || options == nullptr) {
      return invalid("the records or the options are null");
    }
    PENSTOCK_ASSIGN(const engine::SimulateOptions wanted, options_of(read_struct(options)));
    const std::span recorded(reinterpret_cast<const engine::WorkRecord*>(records), count);
    PENSTOCK_ASSIGN(const engine::SimulateResult found, engine::simulate(recorded, wanted));
    for (uint64_t i = 0; steps != nullptr && i < std::min(capacity, found.steps.size()); ++i) {
      steps[i] = to_c(found.steps[i]);
    }
    for (uint64_t i = 0; spans != nullptr && i < std::min(span_capacity, found.spans.size()); ++i) {
      spans[i] = to_c(found.spans[i]);
    }
    return write_struct(to_c(found), result);
  });
}
