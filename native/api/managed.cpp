// SPDX-License-Identifier: Apache-2.0
// The C API for managed memory: a thin coat over engine::ManagedSet.
#include <vector>

#include "api/handles.hpp"
#include "engine/managed/managed_set.hpp"

struct penstock_managed {
  static constexpr const char* kName = "the managed set";
  std::unique_ptr<penstock::engine::ManagedSet> set;
  auto& operator*() const { return *set; }
};

namespace penstock::api {
namespace {

Result<engine::ManagedSetOptions> managed_from_c(const penstock_managed_options& from) {
  engine::ManagedSetOptions to;
  PENSTOCK_COPY_FIELDS(to, from, budget, look_ahead, on_demand, allow_oversubscription,
                       profile_every)
  PENSTOCK_COPY_FIELDS(to.mover, from, streams, read_mostly)
  to.mover.max_in_flight = from.max_in_flight_bytes;
  PENSTOCK_ASSIGN(to.mover.eviction,
                  to_enum("eviction", from.eviction, engine::Eviction::kPrefetchToHost));
  return to;
}

Result<std::vector<engine::GroupSpec>> specs_of(const penstock_managed_group* groups,
                                                int32_t count) {
  std::vector<engine::GroupSpec> specs;
  for (int32_t i = 0; i < count; ++i) {
    if ((groups[i].flags & ~uint32_t{PENSTOCK_ON_HOST}) != 0) {
      return invalid("a managed group with the flags ", groups[i].flags);
    }
    specs.push_back({groups[i].bytes, groups[i].flags == PENSTOCK_ON_HOST});
  }
  return specs;
}

penstock_managed_stats to_c(const engine::ManagedSetStats& from) {
  penstock_managed_stats to{};
  PENSTOCK_COPY_FIELDS(to, from.moved, bytes_in, bytes_out, evicted_bytes, prefetches, evictions)
  to.device_bytes = from.moved.resident;
  to.peak_device_bytes = from.moved.peak;
  PENSTOCK_COPY_FIELDS(to, from, stalls, iterations, plans, mismatches, budget, groups, kept_groups,
                       planned_bytes_in, iteration_bytes_in, iteration_bytes_out, iteration_stalls,
                       look_ahead)
  to.group_uses = from.uses;
  to.group_hits = from.hits;
  to.iteration_group_uses = from.iteration_uses;
  to.iteration_group_hits = from.iteration_hits;
  to.managed_bytes = from.total;
  to.host_only_bytes = from.host_only;
  to.kept_bytes = from.kept;
  copy_stalls(to, from.profile);
  to.largest_stall_group = from.profile.largest_use;
  return to;
}

}  // namespace
}  // namespace penstock::api

penstock_status penstock_managed_create(penstock_device* device,
                                        const penstock_managed_options* options,
                                        penstock_managed_group* groups, int32_t count,
                                        penstock_managed** managed) {
  using Made = Result<std::unique_ptr<engine::ManagedSet>>;
  return make(device, managed, [&](driver::Driver& driver) -> Made {
    if (groups == nullptr && count > 0) return missing("the list of groups");
    PENSTOCK_ASSIGN(const engine::ManagedSetOptions wanted, managed_from_c(read_struct(options)));
    PENSTOCK_ASSIGN(const std::vector<engine::GroupSpec> specs, specs_of(groups, count));
    PENSTOCK_ASSIGN(auto set, engine::ManagedSet::create(driver, wanted, specs));
    for (int32_t i = 0; i < count; ++i) groups[i].address = set->group(i).value().address;
    return set;
  });
}

void penstock_managed_destroy(penstock_managed* managed) { delete managed; }

PENSTOCK_FORWARD(penstock_managed_begin, penstock_managed, it.begin(group, to_stream(stream)),
                 int32_t group, uint64_t stream)
PENSTOCK_FORWARD(penstock_managed_end, penstock_managed, it.end(group, to_stream(stream)),
                 int32_t group, uint64_t stream)
PENSTOCK_FORWARD(penstock_managed_iteration, penstock_managed, it.iteration())
PENSTOCK_FORWARD(penstock_managed_resize, penstock_managed, it.resize(budget), uint64_t budget)

uint64_t penstock_managed_smallest(penstock_managed* managed) {
  return managed == nullptr ? 0 : managed->set->smallest();
}

PENSTOCK_FORWARD(penstock_managed_get_stats, penstock_managed,
                 write_struct(to_c(it.stats()), stats), penstock_managed_stats* stats)
