// SPDX-License-Identifier: Apache-2.0
// The C API for the pager: a thin coat over engine::Pager.
#include <vector>

#include "api/handles.hpp"

namespace penstock::api {
namespace {

static_assert(static_cast<int>(engine::RangeKind::kPinned) == PENSTOCK_PINNED);
static_assert(static_cast<int>(engine::RangeKind::kOnHost) == PENSTOCK_ON_HOST);

penstock_pager_stats to_c(const engine::PagerStats& from) {
  penstock_pager_stats to{};
  PENSTOCK_COPY_FIELDS(to, from.counters, bytes_in, bytes_out, page_uses, page_hits,
                       prefetched_pages, demanded_pages, iterations, plans, mismatches, map_calls,
                       unmap_calls, copies)
  PENSTOCK_COPY_FIELDS(to, from, budget, device_bytes, peak_device_bytes, pinned_bytes, host_bytes,
                       paged_bytes, pages, slots, kept_pages, streamed_pages, stream_slots,
                       planned_bytes_in, iteration_bytes_in, iteration_bytes_out,
                       iteration_page_uses, iteration_page_loads, encoded_bytes, code_bytes)
  copy_stalls(to, from.stalls);
  to.largest_stall_use = from.stalls.largest_use;
  return to;
}

}  // namespace
}  // namespace penstock::api

penstock_status penstock_pager_create(penstock_device* device,
                                      const penstock_pager_options* options,
                                      penstock_pager** pager) {
  return make(device, pager, [&](driver::Driver& driver) {
    const penstock_pager_options from = read_struct(options);
    engine::PagerOptions to;
    PENSTOCK_COPY_FIELDS(to, from, budget, chunk_bytes, look_ahead_bytes, max_copy_bytes,
                         profile_every, copy_streams, link_gb_per_s)
    if (from.safety == PENSTOCK_SAFETY_FAST) to.evicted = engine::Evicted::kMapped;
    return engine::Pager::create(driver, to);
  });
}

void penstock_pager_destroy(penstock_pager* pager) {
  if (pager == nullptr) return;
  if (engine::SharedBudget* const shared = pager->pager->shared()) shared->leave(*pager->pager);
  delete pager;
}

penstock_status penstock_range_create(penstock_pager* pager, uint64_t bytes, uint32_t flags,
                                      penstock_range* range) {
  return with(pager, [&](auto& it) -> Status {
    PENSTOCK_ASSIGN(const auto kind,
                    to_enum("range flag", static_cast<int32_t>(flags), engine::RangeKind::kOnHost));
    PENSTOCK_ASSIGN(const std::int32_t index, it.create_range(bytes, kind));
    const engine::Range made = it.range(index);
    penstock_range out{};
    out.id = index;
    PENSTOCK_COPY_FIELDS(out, made, address, bytes, host)
    return write_struct(out, range);
  });
}

penstock_status penstock_use_define(penstock_pager* pager, const penstock_piece* pieces,
                                    int32_t count, int32_t* use) {
  return with(pager, [&](auto& it) -> Status {
    if (use == nullptr || (pieces == nullptr && count > 0)) return missing("use, or pieces,");
    std::vector<engine::Piece> list;
    for (int32_t i = 0; i < count; ++i) {
      list.push_back({pieces[i].address, pieces[i].bytes, pieces[i].written != 0});
    }
    PENSTOCK_ASSIGN(*use, it.define_use(list));
    return {};
  });
}

PENSTOCK_FORWARD(penstock_use_begin, penstock_pager, it.begin(use, to_stream(stream)), int32_t use,
                 uint64_t stream)
PENSTOCK_FORWARD(penstock_use_end, penstock_pager, it.end(use, to_stream(stream)), int32_t use,
                 uint64_t stream)
PENSTOCK_FORWARD(penstock_iteration, penstock_pager, it.iteration(kind, work), int64_t kind,
                 uint64_t work)
PENSTOCK_FORWARD(penstock_fetch, penstock_pager, it.fetch(address, bytes), uint64_t address,
                 uint64_t bytes)
PENSTOCK_FORWARD(penstock_flush, penstock_pager, it.flush(address, bytes), uint64_t address,
                 uint64_t bytes)
PENSTOCK_FORWARD(penstock_forget, penstock_pager, it.forget(address, bytes), uint64_t address,
                 uint64_t bytes)
PENSTOCK_FORWARD(penstock_cool, penstock_pager, it.cool(address, bytes), uint64_t address,
                 uint64_t bytes)

penstock_status penstock_is_resident(penstock_pager* pager, uint64_t address, int32_t* resident) {
  return with(pager, [&](auto& it) -> Status {
    if (resident == nullptr) return missing("resident");
    PENSTOCK_ASSIGN(const bool there, it.is_resident(address));
    *resident = there ? 1 : 0;
    return {};
  });
}

penstock_status penstock_pack(penstock_pager* pager, penstock_packing* blocks, int32_t count) {
  return with(pager, [&](auto& it) -> Status {
    if (blocks == nullptr && count > 0) return missing("blocks");
    std::vector<engine::Packing> list;
    for (int32_t i = 0; i < count; ++i) {
      list.push_back({.address = blocks[i].address,
                      .bytes = blocks[i].bytes,
                      .encode = blocks[i].encode != 0,
                      .host = nullptr});
    }
    PENSTOCK_TRY(it.pack(list));
    for (std::size_t i = 0; i < list.size(); ++i) blocks[i].host = list[i].host;
    return {};
  });
}

penstock_status penstock_read(penstock_pager* pager, uint64_t address, uint64_t bytes, void* to) {
  return with(pager, [&](auto& it) -> Status {
    if (to == nullptr) return missing("to");
    return it.read(address, bytes, static_cast<std::byte*>(to));
  });
}

penstock_status penstock_unpack(penstock_pager* pager, uint64_t address, uint64_t bytes,
                                void** host) {
  return with(pager, [&](auto& it) -> Status {
    if (host == nullptr) return missing("host");
    PENSTOCK_ASSIGN(*host, it.unpack(address, bytes));
    return {};
  });
}

penstock_status penstock_verify(penstock_pager* pager, uint64_t* bytes) {
  return with(pager, [&](auto& it) -> Status {
    if (bytes == nullptr) return missing("bytes");
    PENSTOCK_ASSIGN(*bytes, it.verify());
    return {};
  });
}

PENSTOCK_FORWARD(penstock_pager_resize, penstock_pager, it.resize(budget), uint64_t budget)

uint64_t penstock_pager_smallest(penstock_pager* pager) {
  return pager == nullptr ? 0 : pager->pager->smallest();
}

PENSTOCK_FORWARD(penstock_pager_get_stats, penstock_pager, write_struct(to_c(it.stats()), stats),
                 penstock_pager_stats* stats)
