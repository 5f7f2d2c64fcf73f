// SPDX-License-Identifier: Apache-2.0
// The stitching allocator over an emulated GPU, with chunks small enough for tests.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "engine/allocation/allocator.hpp"
#include "paged_program.hpp"

namespace penstock::testing {

struct Machine {
  std::unique_ptr<driver::HostDriver> device;
  std::unique_ptr<engine::Allocator> allocator;
  std::vector<driver::Stream> streams;

  // Ends everything; what is left would be a leak.
  void close() {
    allocator.reset();
    for (const driver::Stream stream : streams) PENSTOCK_REQUIRE_OK(device->destroy_stream(stream));
    CHECK(device->live() == driver::LiveCounts{});
  }
};

inline engine::AllocatorOptions small_options() {
  engine::AllocatorOptions options;
  options.packing.smallest_chunk = kGranule;
  options.packing.largest_chunk = 4 * kGranule;
  options.packing.chunks_a_growth = 2;
  options.packing.growth_bytes = 4 * kGranule;
  options.packing.stitch_limit = kGranule;
  return options;
}

inline Machine open_machine(driver::HostDriverOptions host, const engine::AllocatorOptions& options,
                            int streams) {
  Machine machine;
  host.granularity = kGranule;
  auto device = driver::open_host_driver(host);
  PENSTOCK_REQUIRE_OK(device.status());
  machine.device = std::move(device).value();
  auto allocator = engine::Allocator::create(*machine.device, options);
  PENSTOCK_REQUIRE_OK(allocator.status());
  machine.allocator = std::move(allocator).value();
  for (int i = 0; i < streams; ++i) {
    auto stream = machine.device->create_stream();
    PENSTOCK_REQUIRE_OK(stream.status());
    machine.streams.push_back(stream.value());
  }
  return machine;
}

}  // namespace penstock::testing
