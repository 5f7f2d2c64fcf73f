// SPDX-License-Identifier: Apache-2.0
// Recordings for penstock_simulate() and traces for penstock_replay(), some of which cannot be.
#include <tuple>

#include "draw.hpp"
#include "penstock/penstock.h"
#include "penstock/simulate.h"

namespace penstock::fuzz {
namespace {

// A program over a few blocks, that may go over them again and again.
std::vector<penstock_work_record> recording(Draw& draw, std::uint64_t unit) {
  std::vector<penstock_work_record> records;
  std::vector<std::uint32_t> live;
  std::uint32_t next = 0;
  std::uint64_t time = 0;
  const auto make = [&] {
    records.push_back({PENSTOCK_RECORD_ALLOCATE, 0, 0, next, time,
                       draw.chance(0.02) ? draw.odd_bytes() : 1 + draw.below(8 * unit)});
    live.push_back(next++);
  };
  for (std::uint64_t i = 1 + draw.below(8); i > 0; --i) make();
  const bool loops = draw.chance(0.6);
  const std::uint64_t period = 1 + draw.below(8);
  const std::uint64_t pieces = 3 + draw.below(60);
  for (std::uint64_t i = 0; i < pieces; ++i) {
    time += draw.below(draw.chance(0.1) ? 5'000'000 : 30'000);
    const std::uint64_t kind = draw.below(20);
    if (kind == 0) {
      make();
    } else if (kind == 1 && live.size() > 1 && !loops) {
      const std::uint64_t at = draw.below(live.size());
      records.push_back({PENSTOCK_RECORD_FREE, 0, 0, live[at], time, 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (kind == 2) {
      const auto op = draw.chance(0.5) ? PENSTOCK_RECORD_PIN : PENSTOCK_RECORD_UNPIN;
      records.push_back({static_cast<std::uint8_t>(op), 0, 0, draw.one_of(live), time, 0});
    } else {
      const auto touches = static_cast<std::uint32_t>(draw.below(4));
      const std::uint64_t stream = draw.chance(0.9) ? 0 : draw.below(3);
      const std::uint64_t function = loops ? i % period : draw.below(5);
      records.push_back({PENSTOCK_RECORD_WORK, static_cast<std::uint8_t>(draw.chance(0.1)),
                         static_cast<std::uint16_t>(draw.chance(0.8) ? 0 : draw.below(5)), touches,
                         time, function | stream << 32});
      for (std::uint32_t j = 0; j < touches; ++j) {
        const std::uint32_t block =
            loops ? live[(i % period + j) % live.size()] : draw.one_of(live);
        records.push_back({PENSTOCK_RECORD_TOUCH, static_cast<std::uint8_t>(draw.below(2)), 0,
                           block, draw.chance(0.6) ? 0 : draw.below(unit),
                           draw.chance(0.6) ? 0 : draw.below(unit)});
      }
    }
  }
  return records;
}

void spoil(Draw& draw, std::vector<penstock_work_record>& records) {
  for (std::uint64_t i = 1 + draw.below(4); i > 0 && !records.empty(); --i) {
    const std::uint64_t at = draw.below(records.size());
    penstock_work_record& record = records[at];
    switch (draw.below(7)) {
      case 0:
        record.op = static_cast<std::uint8_t>(draw.below(9));
        break;
      case 1:
        record.flags = static_cast<std::uint8_t>(draw.below(256));
        break;
      case 2:
        record.kind = static_cast<std::uint16_t>(draw.below(8));
        break;
      case 3:
        record.number = static_cast<std::uint32_t>(draw.odd_or(0.5, draw.below(12)));
        break;
      case 4:
        record.at = draw.odd();
        break;
      case 5:
        record.value = draw.odd_bytes();
        break;
      default:
        records.erase(records.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

}  // namespace

std::uint64_t simulate(Draw& draw) {
  const std::uint64_t unit = draw.chance(0.5) ? kMiB : kMiB / 16;
  std::vector<penstock_work_record> records = recording(draw, unit);
  if (draw.chance(0.6)) spoil(draw, records);
  auto options = sized<penstock_simulate_options>();
  penstock_simulate_defaults(&options);
  options.policy = static_cast<std::int32_t>(draw.odd_or(0.02, draw.below(4)));
  options.kernels_write = static_cast<std::int32_t>(draw.below(2));
  options.granularity = draw.chance(0.5) ? 0 : draw.odd_or(0.1, unit >> draw.below(3));
  const std::uint64_t grain = draw.chance(0.5) ? 2 * kMiB : unit;
  options.budget = draw.odd_or(0.01, grain * (1 + draw.below(40)));
  if (draw.chance(0.3)) options.page_bytes = draw.odd_or(0.2, unit * (1 + draw.below(3)));
  // Books of a large device, in small pages, take seconds.
  if (draw.chance(0.2)) options.device_bytes = draw.odd_or(0.01, grain * (40 + draw.below(400)));
  if (draw.chance(0.2)) options.steps = draw.odd_or(0.3, draw.below(20));
  if (draw.chance(0.3)) options.recorded_budget = unit * draw.below(40);
  if (draw.chance(0.1)) options.link_gb_per_s = draw.odd_real();
  for (double* cost :
       {&options.create_us, &options.map_us, &options.set_access_us, &options.unmap_us}) {
    if (draw.chance(0.03)) *cost = draw.odd_real();
  }
  draw.shorten(options, 0.02);
  std::vector<penstock_simulate_step> steps(draw.below(32));
  auto result = sized<penstock_simulate_result>();
  draw.shorten(result, 0.02);
  // Of the exact size, so that a record too many is seen.
  std::vector<penstock_work_record> exact(records.begin(), records.end());
  exact.shrink_to_fit();
  std::vector<penstock_simulate_span> spans(draw.below(32));
  penstock_simulate(exact.data(), exact.size(), &options, steps.data(), steps.size(), spans.data(),
                    spans.size(), &result);
  return 1;
}

std::uint64_t replay(Draw& draw) {
  // A device of at most 300 pages, whatever their size: what its books take goes with their number.
  const std::uint64_t page = draw.chance(0.3) ? kPage << draw.below(12) : 2 * kMiB;
  const std::uint64_t count = 1 + draw.below(80);
  std::vector<std::uint8_t> op(count);
  std::vector<std::uint32_t> id(count);
  std::vector<std::uint32_t> stream(count);
  std::vector<std::uint64_t> bytes(count);
  std::vector<std::uint64_t> time_us(count);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> live;
  std::uint64_t time = draw.below(1000);
  for (std::uint64_t i = 0; i < count; ++i) {
    time_us[i] = time += draw.below(100);
    if (live.empty() || draw.chance(0.55)) {
      id[i] = static_cast<std::uint32_t>(i);
      bytes[i] = 1 + draw.below(draw.chance(0.5) ? kPage : 32 * page);
      stream[i] = draw.chance(0.8) ? 0 : static_cast<std::uint32_t>(draw.below(4));
      live.emplace_back(id[i], bytes[i]);
    } else {
      const std::uint64_t at = draw.below(live.size());
      op[i] = draw.chance(0.9) ? 2 : 1;
      std::tie(id[i], bytes[i]) = live[at];
      stream[i] = static_cast<std::uint32_t>(draw.below(3));
      if (op[i] == 2) live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (std::uint64_t i = draw.chance(0.6) ? 1 + draw.below(4) : 0; i > 0; --i) {
    const std::uint64_t at = draw.below(count);
    op[at] = static_cast<std::uint8_t>(draw.chance(0.3) ? draw.below(5) : op[at]);
    id[at] = draw.chance(0.2) ? static_cast<std::uint32_t>(draw.odd()) : id[at];
    bytes[at] = draw.odd_or(0.3, bytes[at]);
    stream[at] = draw.chance(0.2) ? static_cast<std::uint32_t>(draw.odd()) : stream[at];
    time_us[at] = draw.odd_or(0.2, time_us[at]);
  }
  auto trace = sized<penstock_trace>();
  trace.count = count;
  trace.op = op.data();
  trace.id = id.data();
  trace.bytes = bytes.data();
  trace.stream = stream.data();
  trace.time_us = time_us.data();
  auto options = sized<penstock_replay_options>();
  penstock_replay_defaults(&options);
  options.allocator = static_cast<std::int32_t>(draw.odd_or(0.02, draw.below(3)));
  // Without a capacity, and with an odd one, the books are those of a device larger than any.
  if (draw.chance(0.998)) options.capacity = draw.odd_or(0.002, page * draw.below(300));
  if (page != 2 * kMiB) options.granularity = draw.odd_or(0.1, page);
  if (draw.chance(0.1)) (draw.chance(0.5) ? options.map_us : options.create_us) = draw.odd_real();
  auto packing = sized<penstock_allocator_options>();
  packing.grow_exactly = static_cast<std::int32_t>(draw.below(2));
  packing.stitch_when = static_cast<std::int32_t>(draw.odd_or(0.05, draw.below(4)));
  for (auto [field, usual] : {std::pair{&packing.chunk_bytes, page << draw.below(6)},
                              std::pair{&packing.growth_bytes, 1 + draw.below(64 * kMiB)},
                              std::pair{&packing.stitch_limit, 1 + draw.below(8 * kMiB)},
                              std::pair{&packing.range_limit, 1 + draw.below(1024 * kMiB)},
                              std::pair{&packing.largest_chunk_bytes, kMiB << draw.below(8)}}) {
    if (draw.chance(0.2)) *field = draw.odd_or(0.15, usual);
  }
  if (draw.chance(0.2)) {
    packing.reuse_limit = draw.chance(0.2) ? draw.odd_real() : 1.0 + double(draw.below(10));
  }
  std::vector<penstock_replay_point> curve(draw.below(30));
  auto result = sized<penstock_replay_result>();
  penstock_replay(&trace, draw.chance(0.998) ? &options : nullptr,
                  draw.chance(0.8) ? &packing : nullptr, curve.empty() ? nullptr : curve.data(),
                  curve.size(), &result);
  return 1;
}

}  // namespace penstock::fuzz
