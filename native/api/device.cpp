// SPDX-License-Identifier: Apache-2.0
// The C API for devices: opening one, asking about it, measuring its link.
#include <cstdio>

#include "api/handles.hpp"
#include "process/link.hpp"

namespace penstock::api {
namespace {

thread_local std::string last_error;

driver::HostDriverOptions host_options(const penstock_device_options& from) {
  driver::HostDriverOptions options;
  if (from.capacity != 0) options.capacity = from.capacity;
  if (from.granularity != 0) options.granularity = from.granularity;
  PENSTOCK_COPY_FIELDS(options, from, host_capacity, seed, max_delay_us, fail_at_call)
  return options;
}

}  // namespace

penstock_status leave(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<penstock_status>(status.code());
}

}  // namespace penstock::api

const char* penstock_version(void) { return PENSTOCK_VERSION; }
const char* penstock_last_error(void) { return last_error.c_str(); }

penstock_status penstock_open(const penstock_device_options* options, penstock_device** device) {
  return guard([&]() -> Status {
    if (device == nullptr) return missing("the place for the device");
    const penstock_device_options from = read_struct(options);
    auto handle = std::make_unique<penstock_device>();
    if (from.kind == PENSTOCK_EMULATED) {
      PENSTOCK_ASSIGN(auto host, driver::open_host_driver(host_options(from)));
      handle->host = host.get();
      handle->driver = std::move(host);
    } else if (from.kind == PENSTOCK_CUDA) {
      PENSTOCK_ASSIGN(handle->driver, driver::open_cuda_driver(from.ordinal));
    } else {
      return invalid("no device kind ", from.kind);
    }
    *device = handle.release();
    return {};
  });
}

void penstock_close(penstock_device* device) { delete device; }

penstock_status penstock_get_info(penstock_device* device, penstock_device_info* info) {
  return with(device, [&](auto& it) -> Status {
    const driver::DeviceInfo& from = it.info();
    penstock_device_info out{};
    std::snprintf(out.name, sizeof(out.name), "%s", from.name.c_str());
    PENSTOCK_COPY_FIELDS(out, from, ordinal, driver_version, compute_capability, virtual_memory,
                         host_chunks, managed, concurrent_managed, emulated, total, granularity)
    return write_struct(out, info);
  });
}

penstock_status penstock_memory(penstock_device* device, uint64_t* free_bytes,
                                uint64_t* total_bytes) {
  return with(device, [&](auto& it) -> Status {
    PENSTOCK_ASSIGN(const driver::MemoryInfo memory, it.memory_info());
    if (free_bytes != nullptr) *free_bytes = memory.free;
    if (total_bytes != nullptr) *total_bytes = memory.total;
    return {};
  });
}

PENSTOCK_FORWARD(penstock_share, penstock_device, it.share_with(ordinal), int32_t ordinal)

penstock_status penstock_live(penstock_device* device, penstock_live_counts* counts) {
  return with(device, [&](auto& it) -> Status {
    const driver::LiveCounts live = it.live();
    penstock_live_counts out{};
    PENSTOCK_COPY_FIELDS(out, live, ranges, chunks, mappings, host_allocations, managed_allocations,
                         streams, events)
    return write_struct(out, counts);
  });
}

int64_t penstock_driver_calls(penstock_device* device) {
  return device != nullptr && device->host != nullptr ? device->host->calls() : 0;
}

penstock_status penstock_measure_link(penstock_device* device, uint64_t bytes, int32_t repeats,
                                      double* in_gb_per_s, double* out_gb_per_s) {
  return with(device, [&](auto& it) -> Status {
    PENSTOCK_ASSIGN(const engine::LinkSpeed speed, engine::measure_link(it, bytes, repeats));
    if (in_gb_per_s != nullptr) *in_gb_per_s = speed.in_gb_per_s;
    if (out_gb_per_s != nullptr) *out_gb_per_s = speed.out_gb_per_s;
    return {};
  });
}
