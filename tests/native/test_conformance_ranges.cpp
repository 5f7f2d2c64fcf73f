// SPDX-License-Identifier: Apache-2.0
// Conformance: what a driver is, ranges and chunks on their own.
#include <bit>
#include <string>

#include "conformance.hpp"
#include "conformance_bench.hpp"

namespace penstock::driver::conformance {
namespace {

void describes_itself(Driver& driver) {
  const DeviceInfo& info = driver.info();
  CHECK_FALSE(info.name.empty());
  CHECK(info.total > 0);
  CHECK(std::has_single_bit(info.granularity));
  CHECK(info.virtual_memory);
  CHECK(info.ordinal >= 0);
  CHECK((info.driver_version > 0) == !info.emulated);
  CHECK((info.compute_capability > 0) == !info.emulated);
  const auto memory = driver.memory_info();
  PENSTOCK_REQUIRE_OK(memory.status());
  CHECK(memory.value().free <= memory.value().total);
  CHECK(memory.value().total <= info.total);
}

void live_counts(Driver& driver) {
  const LiveCounts before = driver.live();
  LiveCounts more = before;
  {
    Bench bench(driver);
    const Addr address = bench.range(4 * bench.granule);
    const Chunk chunk = bench.chunk(bench.granule);
    bench.map(address, bench.granule, chunk);
    bench.map(address + 2 * bench.granule, bench.granule, chunk);
    bench.stream();
    bench.event();
    bench.event(true);
    bench.page_locked(1000);
    more.ranges += 1;
    more.chunks += 1;
    more.mappings += 2;
    more.streams += 1;
    more.events += 2;
    more.host_allocations += 1;
    if (driver.info().managed) {
      bench.managed(bench.granule);
      more.managed_allocations += 1;
    }
    CHECK(driver.live() == more);
    bench.release(chunk);
    more.chunks -= 1;  // no longer held; its mappings are counted
    CHECK(driver.live() == more);
  }
  CHECK(driver.live() == before);
}

void ranges(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  PENSTOCK_CHECK_CODE(driver.reserve(0).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.reserve(granule + 1).status(), Code::kInvalidArgument);
  const Addr first = bench.range(3 * granule);
  const Addr second = bench.range(5 * granule);
  const Addr large =
      bench.range(align_up(driver.info().total, bench.granule) * 4);  // addresses are not memory
  for (const Addr address : {first, second, large}) CHECK(address % granule == 0);
  CHECK((first + 3 * granule <= second || second + 5 * granule <= first));
  PENSTOCK_CHECK_CODE(driver.unreserve(first, 2 * granule), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.unreserve(first + granule, 2 * granule), Code::kInvalidArgument);
  auto third = driver.reserve(granule);
  PENSTOCK_REQUIRE_OK(third.status());
  PENSTOCK_CHECK_OK(driver.unreserve(third.value(), granule));
  PENSTOCK_CHECK_CODE(driver.unreserve(third.value(), granule), Code::kInvalidArgument);
}

void range_with_mapping(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.range(3 * granule);
  bench.map(address + granule, granule, bench.chunk(granule));
  const ByteVector bytes = pattern(granule, 1);
  bench.write(address + granule, bytes);
  PENSTOCK_CHECK_CODE(driver.unreserve(address, 3 * granule), Code::kInvalidArgument);
  CHECK(bench.read(address + granule, granule) == bytes);
}

void chunk_memory(Driver& driver) {
  Bench bench(driver);
  const Bytes size = align_up(256 * kMiB, bench.granule);
  const Bytes before = bench.free_memory();
  const Chunk chunk = bench.chunk(size);
  CHECK(bench.free_memory() <= before - size + slack(driver));
  bench.release(chunk);
  CHECK(bench.free_memory() + slack(driver) >= before);
}

void chunk_beyond_capacity(Driver& driver) {
  Bench bench(driver);
  const Bytes total = align_up(driver.info().total, bench.granule);
  const Bytes before = bench.free_memory();
  const auto refused = driver.create_chunk(total + bench.granule, Place::kDevice);
  PENSTOCK_CHECK_CODE(refused.status(), Code::kOutOfMemory);
  CHECK(refused.status().message().find_first_of("0123456789") != std::string::npos);
  CHECK(refused.status().message().find('\n') == std::string::npos);
  CHECK(bench.free_memory() + slack(driver) >= before);
  bench.chunk(bench.granule);  // and a small one still fits
}

void chunk_arguments(Driver& driver) {
  Bench bench(driver);
  const Place device = Place::kDevice;
  PENSTOCK_CHECK_CODE(driver.create_chunk(0, device).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.create_chunk(bench.granule / 2, device).status(),
                      Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.create_chunk(bench.granule + 1, device).status(),
                      Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.release_chunk(Chunk{0xDEAD0000u}), Code::kInvalidArgument);
  const Chunk chunk = bench.chunk(bench.granule);
  bench.release(chunk);
  PENSTOCK_CHECK_CODE(driver.release_chunk(chunk), Code::kInvalidArgument);
}

}  // namespace

std::vector<Rule> rules_of_ranges() {
  return {
      {"a driver says what it is", describes_itself},
      {"live() counts one of each and comes back to none", live_counts},
      {"ranges are aligned, apart and given back whole", ranges},
      {"a range with a mapping stays", range_with_mapping},
      {"chunks take device memory and give it back", chunk_memory},
      {"a chunk beyond the device is out of memory, in numbers", chunk_beyond_capacity},
      {"bad sizes and unknown chunks are refused", chunk_arguments},
  };
}

}  // namespace penstock::driver::conformance
