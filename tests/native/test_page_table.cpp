// SPDX-License-Identifier: Apache-2.0
// The page table: a range that is undone, as when there is no room for its slots, leaves nothing.
#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "engine/paging/page_table.hpp"

namespace penstock::testing {

using engine::RangeKind;

TEST_CASE("page table: a range that is undone leaves neither memory nor numbers behind") {
  constexpr Bytes kGranule = 64 * kKiB;
  const auto device = driver::open_host_driver({.granularity = kGranule}).value();
  {
    engine::ChunkPool pool(*device, kGranule, 64 * kGranule);
    engine::PageTable table(*device, pool, false);
    REQUIRE(table.create(3 * kGranule, RangeKind::kPaged).value() == 0);
    for (const RangeKind kind : {RangeKind::kPaged, RangeKind::kPinned, RangeKind::kHeap}) {
      const driver::LiveCounts before = device->live();
      const Bytes host = table.host_bytes();
      const auto pages = table.pages();
      REQUIRE(table.create(5 * kGranule, kind).value() == 1);
      const Addr address = table.range(1).address;
      table.undo_create();
      CHECK(table.find(address, 1) == nullptr);
      CHECK(table.pages() == pages);
      CHECK(table.host_bytes() == host);
      CHECK(table.pinned_bytes() == 0);
      CHECK(table.paged_bytes() == 3 * kGranule);
      CHECK(pool.held() == 0);
      CHECK(device->live().ranges == before.ranges);
      CHECK(device->live().chunks == before.chunks);
      CHECK(device->live().mappings == before.mappings);
      CHECK(device->live().host_allocations == before.host_allocations);
    }
  }
  CHECK(device->live().ranges == 0);
}

}  // namespace penstock::testing
