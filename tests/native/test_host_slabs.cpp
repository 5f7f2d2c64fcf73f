// SPDX-License-Identifier: Apache-2.0
// Host memory for pages one by one: neighbours lie side by side, nothing is given twice, and what
// nobody needs is given back.
#include <map>
#include <random>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"
#include "engine/paging/host_slabs.hpp"

namespace penstock::engine {
namespace {

using policy::PageId;
constexpr Bytes kPage = 4 * kMiB;  // 16 in a slab

std::unique_ptr<driver::HostDriver> open(Bytes host_capacity = 0) {
  auto device = driver::open_host_driver({.host_capacity = host_capacity});
  PENSTOCK_REQUIRE_OK(device.status());
  return std::move(device).value();
}

TEST_CASE("host slabs: neighbours lie side by side, page-locked by one call") {
  const auto device = open();
  HostSlabs slabs(*device, kPage);
  // Pages 100 to 139 are a heap; slabs are 100 to 115, 116 to 131, 132 to 139.
  const auto piece = [&](PageId page) { return slabs.give(page, 100, 140).value(); };
  const HostSlabs::Piece middle = piece(110);
  CHECK(device->live().host_allocations == 1);
  CHECK(slabs.bytes() == 16 * kPage);
  const HostSlabs::Piece next = piece(111);
  CHECK(next.slab == middle.slab);
  CHECK(next.host == middle.host + kPage);
  CHECK(device->live().host_allocations == 1);
  const HostSlabs::Piece first = piece(116);
  CHECK(first.slab != middle.slab);
  const HostSlabs::Piece last = piece(139);  // the heap ends
  CHECK(slabs.bytes() == (16 + 16 + 8) * kPage);
  slabs.take(middle.slab);
  CHECK(device->live().host_allocations == 3);
  slabs.take(next.slab);
  slabs.take(first.slab);
  slabs.take(last.slab);
  CHECK(device->live().host_allocations == 0);
  CHECK(slabs.bytes() == 0);
}

TEST_CASE("host slabs: what is left of the host's memory is used to the last page") {
  const auto device = open(19 * kPage);
  HostSlabs slabs(*device, kPage);
  const HostSlabs::Piece whole = slabs.give(0, 0, 64).value();
  // No second slab fits; three pages do, wherever they are.
  const HostSlabs::Piece alone = slabs.give(20, 0, 64).value();
  const HostSlabs::Piece other = slabs.give(21, 0, 64).value();
  CHECK(alone.slab != other.slab);
  const HostSlabs::Piece third = slabs.give(40, 0, 64).value();
  PENSTOCK_CHECK_CODE(slabs.give(22, 0, 64).status(), Code::kHostOutOfMemory);
  PENSTOCK_CHECK_CODE(slabs.give(22, 0, 64).status(), Code::kHostOutOfMemory);
  CHECK(slabs.bytes() == 19 * kPage);
  slabs.take(whole.slab);
  // There is room for a slab, but in it two pages have memory of their own.
  const HostSlabs::Piece between = slabs.give(22, 0, 64).value();
  CHECK(slabs.bytes() == 4 * kPage);
  for (const auto& piece : {alone, other, third, between}) slabs.take(piece.slab);
  CHECK(device->live().host_allocations == 0);
}

TEST_CASE("host slabs: what is held at the end goes with them") {
  const auto device = open();
  {
    HostSlabs slabs(*device, kPage);
    PENSTOCK_REQUIRE_OK(slabs.give(3, 0, 64).status());
    PENSTOCK_REQUIRE_OK(slabs.give(30, 0, 64).status());
    CHECK(device->live().host_allocations == 2);
  }
  CHECK(device->live().host_allocations == 0);
}

TEST_CASE("host slabs: pieces never overlap, in any order") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const auto device = open(seed % 2 == 0 ? 40 * kPage : 0);
    HostSlabs slabs(*device, kPage);
    std::mt19937_64 random(seed);
    std::map<PageId, HostSlabs::Piece> held;
    std::map<std::byte*, PageId> places;
    for (int step = 0; step < 400; ++step) {
      const auto page = static_cast<PageId>(random() % 90);
      const PageId heap = page < 50 ? 0 : 50;
      if (const auto found = held.find(page); found != held.end()) {
        places.erase(found->second.host);
        slabs.take(found->second.slab);
        held.erase(found);
        continue;
      }
      const auto given = slabs.give(page, heap, heap == 0 ? 50 : 90);
      if (!given.ok()) {
        PENSTOCK_CHECK_CODE(given.status(), Code::kHostOutOfMemory);
        continue;
      }
      const auto after = places.lower_bound(given.value().host);
      CHECK((after == places.end() || given.value().host + kPage <= after->first));
      CHECK((after == places.begin() || std::prev(after)->first + kPage <= given.value().host));
      for (const auto& [other, piece] : held) {
        if (piece.slab != given.value().slab) continue;
        CHECK(piece.host - given.value().host ==
              (other - page) * static_cast<std::ptrdiff_t>(kPage));
      }
      places.emplace(given.value().host, page);
      held.emplace(page, given.value());
    }
    for (const auto& [page, piece] : held) slabs.take(piece.slab);
    CHECK(device->live().host_allocations == 0);
    CHECK(slabs.bytes() == 0);
  }
}

}  // namespace
}  // namespace penstock::engine
