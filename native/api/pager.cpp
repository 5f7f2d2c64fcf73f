// SPDX-License-Identifier: Apache-2.0
// The C API for the pager: a thin coat over engine::Pager.
#include <vector>

#include "api/handles.hpp"

namespace penstock::api {
namespace {

Status missing() { return Status(Code::kInvalidArgument, "the pager is null"); }

driver::Stream as_stream(uint64_t stream) { return static_cast<driver::Stream>(stream); }

penstock_pager_stats to_c(const engine::PagerStats& from) {
  penstock_pager_stats out{};
  const engine::Counters& counters = from.counters;
  out.bytes_in = counters.bytes_in;
  out.bytes_out = counters.bytes_out;
  out.page_uses = counters.page_uses;
  out.page_hits = counters.page_hits;
  out.prefetched_pages = counters.prefetched_pages;
  out.demanded_pages = counters.demanded_pages;
  out.iterations = counters.iterations;
  out.plans = counters.plans;
  out.mismatches = counters.mismatches;
  out.map_calls = counters.map_calls;
  out.unmap_calls = counters.unmap_calls;
  out.copies = counters.copies;
  out.budget = from.budget;
  out.device_bytes = from.device_bytes;
  out.peak_device_bytes = from.peak_device_bytes;
  out.pinned_bytes = from.pinned_bytes;
  out.host_bytes = from.host_bytes;
  out.paged_bytes = from.paged_bytes;
  out.pages = from.pages;
  out.slots = from.slots;
  out.kept_pages = from.kept_pages;
  out.streamed_pages = from.streamed_pages;
  out.stream_slots = from.stream_slots;
  out.planned_bytes_in = from.planned_bytes_in;
  out.iteration_bytes_in = from.iteration_bytes_in;
  out.iteration_bytes_out = from.iteration_bytes_out;
  out.iteration_page_uses = from.iteration_page_uses;
  out.iteration_page_loads = from.iteration_page_loads;
  out.profiled_iterations = from.stalls.iterations;
  out.profiled_ms = from.stalls.total_ms;
  out.stall_ms = from.stalls.stall_ms;
  out.largest_stall_ms = from.stalls.largest_ms;
  out.largest_stall_use = from.stalls.largest_use;
  return out;
}

}  // namespace
}  // namespace penstock::api

using namespace penstock;       // NOLINT(google-build-using-namespace)
using namespace penstock::api;  // NOLINT(google-build-using-namespace)

extern "C" {

penstock_status penstock_pager_create(penstock_device* device,
                                      const penstock_pager_options* options,
                                      penstock_pager** pager) {
  return guard([&]() -> Status {
    if (device == nullptr || pager == nullptr) return missing();
    const penstock_pager_options from = read_struct(options);
    engine::PagerOptions to;
    to.budget = from.budget;
    to.chunk_bytes = from.chunk_bytes;
    to.look_ahead_bytes = from.look_ahead_bytes;
    to.max_copy_bytes = from.max_copy_bytes;
    if (from.safety == PENSTOCK_SAFETY_STRICT) to.evicted = engine::Evicted::kUnmapped;
    to.profile_every = from.profile_every;
    to.copy_streams = from.copy_streams;
    PENSTOCK_ASSIGN(auto made, engine::Pager::create(*device->driver, to));
    *pager = new penstock_pager{std::move(made)};
    return {};
  });
}

void penstock_pager_destroy(penstock_pager* pager) { delete pager; }

penstock_status penstock_range_create(penstock_pager* pager, uint64_t bytes, uint32_t flags,
                                      penstock_range* range) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    engine::RangeKind kind = engine::RangeKind::kPaged;
    if (flags == PENSTOCK_PINNED) {
      kind = engine::RangeKind::kPinned;
    } else if (flags == PENSTOCK_ON_HOST) {
      kind = engine::RangeKind::kOnHost;
    } else if (flags != 0) {
      return Status(Code::kInvalidArgument, "no range flags " + std::to_string(flags));
    }
    PENSTOCK_ASSIGN(const std::int32_t index, pager->pager->create_range(bytes, kind));
    const engine::Range made = pager->pager->range(index);
    penstock_range out{};
    out.id = index;
    out.address = made.address;
    out.bytes = made.bytes;
    out.host = made.host;
    return write_struct(out, range);
  });
}

penstock_status penstock_use_define(penstock_pager* pager, const penstock_piece* pieces,
                                    int32_t count, int32_t* use) {
  return guard([&]() -> Status {
    if (pager == nullptr || use == nullptr || (pieces == nullptr && count > 0)) return missing();
    std::vector<engine::Piece> list;
    for (int32_t i = 0; i < count; ++i) {
      list.push_back({pieces[i].address, pieces[i].bytes, pieces[i].written != 0});
    }
    PENSTOCK_ASSIGN(*use, pager->pager->define_use(list));
    return {};
  });
}

penstock_status penstock_use_begin(penstock_pager* pager, int32_t use, uint64_t stream) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->begin(use, as_stream(stream));
  });
}

penstock_status penstock_use_end(penstock_pager* pager, int32_t use, uint64_t stream) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->end(use, as_stream(stream));
  });
}

penstock_status penstock_iteration(penstock_pager* pager) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->iteration();
  });
}

penstock_status penstock_fetch(penstock_pager* pager, uint64_t address, uint64_t bytes) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->fetch(address, bytes);
  });
}

penstock_status penstock_flush(penstock_pager* pager, uint64_t address, uint64_t bytes) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->flush(address, bytes);
  });
}

penstock_status penstock_forget(penstock_pager* pager, uint64_t address, uint64_t bytes) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->forget(address, bytes);
  });
}

penstock_status penstock_pager_resize(penstock_pager* pager, uint64_t budget) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return pager->pager->resize(budget);
  });
}

uint64_t penstock_pager_smallest(penstock_pager* pager) {
  return pager == nullptr ? 0 : pager->pager->smallest();
}

penstock_status penstock_pager_get_stats(penstock_pager* pager, penstock_pager_stats* stats) {
  return guard([&]() -> Status {
    if (pager == nullptr) return missing();
    return write_struct(to_c(pager->pager->stats()), stats);
  });
}

}  // extern "C"
