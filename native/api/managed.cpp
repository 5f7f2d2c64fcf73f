// SPDX-License-Identifier: Apache-2.0
// The C API for managed memory: a thin coat over engine::ManagedSet.
#include <vector>

#include "api/handles.hpp"
#include "engine/managed_set.hpp"

struct penstock_managed {
  std::unique_ptr<penstock::engine::ManagedSet> set;
};

namespace penstock::api {
namespace {

Status missing() { return Status(Code::kInvalidArgument, "the managed set is null"); }

driver::Stream as_stream(uint64_t stream) { return static_cast<driver::Stream>(stream); }

Result<engine::ManagedSetOptions> from_c(const penstock_managed_options& from) {
  engine::ManagedSetOptions to;
  to.budget = from.budget;
  to.look_ahead = from.look_ahead;
  to.mover.streams = from.streams;
  to.mover.max_in_flight = from.max_in_flight_bytes;
  to.mover.read_mostly = from.read_mostly != 0;
  to.on_demand = from.on_demand != 0;
  to.allow_oversubscription = from.allow_oversubscription != 0;
  to.profile_every = from.profile_every;
  if (from.eviction == PENSTOCK_EVICT_COLLAPSE) {
    to.mover.eviction = engine::Eviction::kCollapse;
  } else if (from.eviction == PENSTOCK_EVICT_TO_HOST) {
    to.mover.eviction = engine::Eviction::kPrefetchToHost;
  } else {
    return Status(Code::kInvalidArgument, "no eviction " + std::to_string(from.eviction));
  }
  return to;
}

Result<std::vector<engine::GroupSpec>> specs_of(const penstock_managed_group* groups,
                                                int32_t count) {
  std::vector<engine::GroupSpec> specs;
  for (int32_t i = 0; i < count; ++i) {
    if ((groups[i].flags & ~uint32_t{PENSTOCK_ON_HOST}) != 0) {
      return Status(Code::kInvalidArgument,
                    "a managed group with the flags " + std::to_string(groups[i].flags));
    }
    specs.push_back({groups[i].bytes, groups[i].flags == PENSTOCK_ON_HOST});
  }
  return specs;
}

penstock_managed_stats to_c(const engine::ManagedSetStats& from) {
  penstock_managed_stats out{};
  out.bytes_in = from.moved.bytes_in;
  out.bytes_out = from.moved.bytes_out;
  out.evicted_bytes = from.moved.evicted_bytes;
  out.prefetches = from.moved.prefetches;
  out.evictions = from.moved.evictions;
  out.group_uses = from.uses;
  out.group_hits = from.hits;
  out.stalls = from.stalls;
  out.iterations = from.iterations;
  out.plans = from.plans;
  out.mismatches = from.mismatches;
  out.budget = from.budget;
  out.device_bytes = from.moved.resident;
  out.peak_device_bytes = from.moved.peak;
  out.managed_bytes = from.total;
  out.host_only_bytes = from.host_only;
  out.groups = from.groups;
  out.kept_groups = from.kept_groups;
  out.kept_bytes = from.kept;
  out.planned_bytes_in = from.planned_bytes_in;
  out.iteration_bytes_in = from.iteration_bytes_in;
  out.iteration_bytes_out = from.iteration_bytes_out;
  out.iteration_group_uses = from.iteration_uses;
  out.iteration_group_hits = from.iteration_hits;
  out.iteration_stalls = from.iteration_stalls;
  out.profiled_iterations = from.profile.iterations;
  out.profiled_ms = from.profile.total_ms;
  out.stall_ms = from.profile.stall_ms;
  out.largest_stall_ms = from.profile.largest_ms;
  out.largest_stall_group = from.profile.largest_use;
  out.look_ahead = from.look_ahead;
  return out;
}

}  // namespace
}  // namespace penstock::api

using namespace penstock;       // NOLINT(google-build-using-namespace)
using namespace penstock::api;  // NOLINT(google-build-using-namespace)

extern "C" {

penstock_status penstock_managed_create(penstock_device* device,
                                        const penstock_managed_options* options,
                                        penstock_managed_group* groups, int32_t count,
                                        penstock_managed** managed) {
  return guard([&]() -> Status {
    if (device == nullptr || managed == nullptr || (groups == nullptr && count > 0)) {
      return missing();
    }
    PENSTOCK_ASSIGN(const engine::ManagedSetOptions wanted, from_c(read_struct(options)));
    PENSTOCK_ASSIGN(const std::vector<engine::GroupSpec> specs, specs_of(groups, count));
    PENSTOCK_ASSIGN(auto set, engine::ManagedSet::create(*device->driver, wanted, specs));
    for (int32_t i = 0; i < count; ++i) groups[i].address = set->group(i).value().address;
    *managed = new penstock_managed{std::move(set)};
    return {};
  });
}

void penstock_managed_destroy(penstock_managed* managed) { delete managed; }

penstock_status penstock_managed_begin(penstock_managed* managed, int32_t group, uint64_t stream) {
  return guard([&]() -> Status {
    if (managed == nullptr) return missing();
    return managed->set->begin(group, as_stream(stream));
  });
}

penstock_status penstock_managed_end(penstock_managed* managed, int32_t group, uint64_t stream) {
  return guard([&]() -> Status {
    if (managed == nullptr) return missing();
    return managed->set->end(group, as_stream(stream));
  });
}

penstock_status penstock_managed_iteration(penstock_managed* managed) {
  return guard([&]() -> Status {
    if (managed == nullptr) return missing();
    return managed->set->iteration();
  });
}

penstock_status penstock_managed_resize(penstock_managed* managed, uint64_t budget) {
  return guard([&]() -> Status {
    if (managed == nullptr) return missing();
    return managed->set->resize(budget);
  });
}

uint64_t penstock_managed_smallest(penstock_managed* managed) {
  return managed == nullptr ? 0 : managed->set->smallest();
}

penstock_status penstock_managed_get_stats(penstock_managed* managed,
                                           penstock_managed_stats* stats) {
  return guard([&]() -> Status {
    if (managed == nullptr) return missing();
    return write_struct(to_c(managed->set->stats()), stats);
  });
}

}  // extern "C"
