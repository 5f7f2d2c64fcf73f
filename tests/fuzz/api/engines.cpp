// SPDX-License-Identifier: Apache-2.0
// Sequences of calls to a pager within a shared budget, a managed set and an allocator, on an
// emulated GPU of which one call may fail.  Blocks hold what was written to them, never overlap,
// and nothing is left at the end.
#include <algorithm>

#include "draw.hpp"
#include "penstock/budget.h"
#include "penstock/penstock.h"

namespace penstock::fuzz {
namespace {

constexpr std::uint64_t kMostWritten = 1 << 22;

// A device that is closed when the engine on it has gone.  Its pages are mostly the smallest there
// are: larger ones take the time of ten inputs to be written, and lead to the same decisions.
class Device {
 public:
  explicit Device(Draw& draw) : granule(draw.chance(0.95) ? kPage : 16 * kPage) {
    auto options = sized<penstock_device_options>();
    options.kind = PENSTOCK_EMULATED;
    options.granularity = draw.odd_or(0.02, granule);
    options.capacity = draw.odd_or(0.02, granule * (8 + draw.below(64)));
    options.host_capacity = draw.chance(0.05) ? draw.odd() : 0;
    options.seed = draw.below(1000);
    options.max_delay_us = draw.chance(0.1) ? static_cast<std::uint32_t>(draw.below(30)) : 0;
    options.fail_at_call = draw.chance(0.5) ? static_cast<std::int64_t>(1 + draw.below(200)) : 0;
    if (penstock_open(&options, &device) != PENSTOCK_OK) device = nullptr;
  }
  ~Device() {
    if (device == nullptr) return;
    auto live = sized<penstock_live_counts>();
    penstock_live(device, &live);
    must(live.ranges + live.chunks + live.mappings == 0, "ranges, chunks or mappings are left");
    must(live.host_allocations + live.managed_allocations == 0, "host or managed memory is left");
    must(live.events == 0, "events are left");
    penstock_close(device);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::uint64_t granule;
  penstock_device* device = nullptr;
};

// An address in one of the ranges, near one, or anywhere.
std::uint64_t somewhere(Draw& draw, const std::vector<penstock_range>& ranges) {
  if (ranges.empty() || draw.chance(0.1)) return draw.odd();
  const penstock_range& range = ranges[draw.below(ranges.size())];
  return range.address + (draw.chance(0.3) ? 0 : draw.below(range.bytes + 8192));
}

penstock_pager* make_pager(Draw& draw, const Device& machine) {
  const std::uint64_t granule = machine.granule;
  auto options = sized<penstock_pager_options>();
  options.budget = draw.odd_or(0.03, granule * (1 + draw.below(40)));
  options.chunk_bytes = draw.odd_or(0.03, draw.chance(0.7) ? granule : 2 * granule);
  options.look_ahead_bytes = draw.odd_or(0.03, granule * draw.below(6));
  options.max_copy_bytes = draw.odd_or(0.03, granule * draw.below(6));
  options.safety = static_cast<std::int32_t>(draw.odd_or(0.03, draw.below(3)));
  options.profile_every = static_cast<std::int32_t>(draw.odd_or(0.03, draw.below(3)));
  options.copy_streams = static_cast<std::uint32_t>(draw.odd_or(0.02, draw.below(3)) % 5000);
  penstock_pager* pager = nullptr;
  return penstock_pager_create(machine.device, &options, &pager) == PENSTOCK_OK ? pager : nullptr;
}

}  // namespace

std::uint64_t pager(Draw& draw) {
  const Device machine(draw);
  if (machine.device == nullptr) return 1;
  const std::uint64_t granule = machine.granule;
  penstock_pager* const it = make_pager(draw, machine);
  if (it == nullptr) return 2;
  penstock_budget* budget = nullptr;
  if (draw.chance(0.3)) {
    must(penstock_budget_create(draw.odd_or(0.05, granule * draw.below(60)), &budget) == 0,
         "no budget");
    penstock_budget_join(budget, it);
  }
  std::vector<penstock_range> ranges;
  std::vector<std::int32_t> uses{-1};
  std::vector<std::int32_t> open;
  std::uint64_t taken = 0;
  const std::uint64_t count = 8 + draw.below(50);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t bytes = draw.odd_or(0.1, draw.below(granule * 4));
    switch (draw.below(16)) {
      case 0: {
        auto range = sized<penstock_range>();
        draw.shorten(range, 0.02);
        const std::uint64_t wanted =
            draw.chance(0.05) ? draw.odd_bytes(granule << 12) : 1 + draw.below(granule * 10);
        const auto flags = static_cast<std::uint32_t>(draw.odd_or(0.05, draw.below(3)));
        if (ranges.size() < 6 && penstock_range_create(it, wanted, flags, &range) == 0 &&
            range.struct_size == sizeof(range)) {
          ranges.push_back(range);
          if (range.bytes < kMostWritten) std::memset(range.host, 1, range.bytes);
        }
        break;
      }
      case 1:
      case 2: {
        std::vector<penstock_piece> pieces(draw.below(5));
        for (penstock_piece& piece : pieces) {
          piece.address = somewhere(draw, ranges);
          piece.bytes = draw.odd_or(0.1, 1 + draw.below(granule * 3));
          piece.written = static_cast<std::uint32_t>(draw.below(2));
        }
        std::int32_t use = -1;
        const auto given = static_cast<std::int32_t>(pieces.size());
        if (penstock_use_define(it, pieces.data(), draw.chance(0.98) ? given : -given, &use) == 0) {
          uses.push_back(use);
        }
        break;
      }
      case 3:
      case 4:
      case 5:
      case 6: {
        const auto use =
            draw.chance(0.02) ? static_cast<std::int32_t>(draw.odd()) : draw.one_of(uses);
        if (penstock_use_begin(it, use, 0) != 0) break;
        if (draw.chance(0.85)) {
          penstock_use_end(it, use, 0);
        } else {
          open.push_back(use);
        }
        break;
      }
      case 7:
        if (!open.empty()) {
          penstock_use_end(it, open.back(), 0);
          open.pop_back();
        } else {
          penstock_use_end(it, static_cast<std::int32_t>(draw.odd_or(0.3, 0)), 0);
        }
        break;
      case 8:
        penstock_iteration(it, static_cast<std::int64_t>(draw.odd_or(0.1, draw.below(2))),
                           draw.odd_or(0.1, draw.below(9)));
        break;
      case 9: {
        penstock_fetch(it, somewhere(draw, ranges), bytes);
        std::int32_t resident = 0;
        penstock_is_resident(it, somewhere(draw, ranges), &resident);
        break;
      }
      case 10:
        penstock_flush(it, somewhere(draw, ranges), bytes);
        break;
      case 11:
        penstock_forget(it, somewhere(draw, ranges), bytes);
        penstock_cool(it, somewhere(draw, ranges), bytes);
        break;
      case 12:
        penstock_pager_resize(it, draw.odd_or(0.1, granule * draw.below(40)));
        break;
      case 13: {
        auto stats = sized<penstock_pager_stats>();
        draw.shorten(stats, 0.05);
        penstock_pager_get_stats(it, &stats);
        penstock_pager_smallest(it);
        break;
      }
      default:
        if (budget == nullptr) break;
        if (taken == 0 && penstock_budget_take(budget, bytes) == 0) taken = bytes;
        if (draw.chance(0.3)) penstock_budget_make_room(budget, bytes, draw.chance(0.5) ? it : 0);
        if (draw.chance(0.2)) penstock_budget_set_limit(budget, granule * draw.below(60));
        if (taken > 0 && draw.chance(0.5)) {
          penstock_budget_put_back(budget, std::exchange(taken, 0));
        }
    }
  }
  if (taken > 0) penstock_budget_put_back(budget, taken);
  if (budget != nullptr && draw.chance(0.5)) penstock_budget_leave(budget, it);
  penstock_pager_destroy(it);
  penstock_budget_destroy(budget);
  return count + 4;
}

std::uint64_t managed(Draw& draw) {
  const Device machine(draw);
  if (machine.device == nullptr) return 1;
  const std::uint64_t granule = machine.granule;
  auto options = sized<penstock_managed_options>();
  options.budget = draw.odd_or(0.03, granule * (1 + draw.below(40)));
  options.max_in_flight_bytes = draw.odd_or(0.03, granule * draw.below(8));
  for (auto [field, end] :
       {std::pair{&options.look_ahead, 6}, std::pair{&options.streams, 4},
        std::pair{&options.eviction, 2}, std::pair{&options.read_mostly, 2},
        std::pair{&options.allow_oversubscription, 2}, std::pair{&options.profile_every, 3}}) {
    *field = static_cast<std::int32_t>(draw.odd_or(0.02, draw.below(std::uint64_t(end))));
  }
  options.on_demand = draw.chance(0.1) ? 1 : 0;
  std::vector<penstock_managed_group> groups(draw.below(10));
  for (penstock_managed_group& group : groups) {
    group = {draw.chance(0.02) ? draw.odd_bytes(granule << 12) : 1 + draw.below(granule * 4), 0,
             draw.chance(0.1) ? 2U : 0U, 0};
  }
  penstock_managed* it = nullptr;
  const auto given = static_cast<std::int32_t>(groups.size());
  if (penstock_managed_create(machine.device, &options, groups.data(),
                              draw.chance(0.98) ? given : -given, &it) != 0) {
    return 2;
  }
  std::vector<std::int32_t> open;
  const std::uint64_t count = 8 + draw.below(60);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto group = static_cast<std::int32_t>(draw.odd_or(0.02, draw.below(groups.size())));
    switch (draw.below(10)) {
      case 6:
        penstock_managed_iteration(it);
        break;
      case 7:
        penstock_managed_resize(it, draw.odd_or(0.1, granule * draw.below(40)));
        break;
      case 8: {
        auto stats = sized<penstock_managed_stats>();
        draw.shorten(stats, 0.05);
        penstock_managed_get_stats(it, &stats);
        penstock_managed_smallest(it);
        break;
      }
      case 9:
        if (open.empty()) break;
        penstock_managed_end(it, open.back(), 0);
        open.pop_back();
        break;
      default:
        if (penstock_managed_begin(it, group, 0) != 0) break;
        if (draw.chance(0.9)) {
          penstock_managed_end(it, group, 0);
        } else {
          open.push_back(group);
        }
    }
  }
  penstock_managed_destroy(it);
  return count + 2;
}

std::uint64_t allocator(Draw& draw) {
  const Device machine(draw);
  if (machine.device == nullptr) return 1;
  const std::uint64_t granule = machine.granule;
  auto options = sized<penstock_allocator_options>();
  options.grow_exactly = static_cast<std::int32_t>(draw.below(2));
  options.stitch_when = static_cast<std::int32_t>(draw.odd_or(0.02, draw.below(4)));
  for (auto [field, usual] : {std::pair{&options.chunk_bytes, granule << draw.below(3)},
                              std::pair{&options.growth_bytes, 1 + draw.below(64 * granule)},
                              std::pair{&options.stitch_limit, 1 + draw.below(8 * granule)},
                              std::pair{&options.range_limit, 1 + draw.below(100 * granule)},
                              std::pair{&options.largest_chunk_bytes, granule << draw.below(6)},
                              std::pair{&options.budget, granule * draw.below(100)}}) {
    if (draw.chance(0.3)) *field = draw.odd_or(0.05, usual);
  }
  penstock_allocator* it = nullptr;
  if (penstock_allocator_create(machine.device, &options, &it) != 0) return 2;
  struct Block {
    std::uint64_t address;
    std::uint64_t bytes;
    unsigned char value;
    std::uint64_t written() const { return std::min(bytes, kMostWritten); }
  };
  std::vector<Block> live;
  if (draw.chance(0.2)) penstock_allocator_record_history(it, draw.below(100), nullptr, nullptr);
  const std::uint64_t count = 10 + draw.below(80);
  for (std::uint64_t i = 0; i < count; ++i) {
    switch (draw.below(16)) {
      case 11: {  // what is no block's beginning
        const std::uint64_t wrong =
            live.empty() ? draw.odd() : draw.one_of(live).address + 1 + draw.below(500);
        const bool is_block =
            std::ranges::any_of(live, [&](const Block& block) { return block.address == wrong; });
        if (!is_block) must(penstock_free(it, wrong) != 0, "what is no block was freed");
        break;
      }
      case 12:
        penstock_empty_cache(it);
        break;
      case 13:
        penstock_allocator_set_budget(it, draw.odd_or(0.1, granule * draw.below(200)));
        break;
      case 14: {
        const std::uint64_t high = draw.below(3);
        if (draw.chance(0.4)) penstock_pool_begin(it, high, 1, nullptr, nullptr);
        if (draw.chance(0.4)) penstock_pool_end(it, high, 1);
        if (draw.chance(0.4)) penstock_pool_release(it, high, 1);
        break;
      }
      case 15: {
        std::uint64_t found = 0;
        std::vector<penstock_piece_info> pieces(draw.below(20));
        penstock_allocator_pieces(it, pieces.data(), pieces.size(), &found);
        std::vector<penstock_history_event> events(draw.below(20));
        penstock_allocator_history(it, events.data(), events.size(), &found);
        auto stats = sized<penstock_allocator_stats>();
        draw.shorten(stats, 0.05);
        penstock_allocator_get_stats(it, &stats);
        penstock_record_stream(it, live.empty() ? draw.odd() : draw.one_of(live).address, 0);
        break;
      }
      case 6:
      case 7:
      case 8:
      case 9:
      case 10: {
        if (live.empty()) break;
        const std::uint64_t at = draw.below(live.size());
        const Block block = live[at];
        const auto* const content = reinterpret_cast<const unsigned char*>(block.address);
        for (const std::uint64_t byte :
             {std::uint64_t{0}, block.written() / 2, block.written() - 1}) {
          must(content[byte] == block.value, "a block holds another's bytes");
        }
        if (penstock_free(it, block.address) == 0) {
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        }
        break;
      }
      default: {
        const std::uint64_t bytes =
            draw.odd_or(0.03, 1 + draw.below(granule * (draw.chance(0.2) ? 20 : 2)));
        std::uint64_t address = 0;
        if (bytes == 0 || penstock_allocate(it, bytes, 0, &address) != 0) break;
        for (const Block& block : live) {
          must(address >= block.address + block.bytes || block.address >= address + bytes,
               "two blocks overlap");
        }
        live.push_back({address, bytes, static_cast<unsigned char>(i)});
        std::memset(reinterpret_cast<void*>(address), static_cast<int>(i), live.back().written());
      }
    }
  }
  penstock_allocator_destroy(it);
  return count + 2;
}

}  // namespace penstock::fuzz
