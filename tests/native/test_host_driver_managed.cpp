// SPDX-License-Identifier: Apache-2.0
// Managed memory on the emulated GPU: what moves, what is evicted and what the device holds.
#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

using conformance::Bench;

constexpr Bytes kGranule = 2 * kMiB;

// Everything in the calling thread's own stream, so that the counters can be read after a call.
class Managed {
 public:
  explicit Managed(Bytes capacity) : driver_(open(capacity)), bench_(*driver_) {}

  HostDriver& driver() { return *driver_; }
  Bench& bench() { return bench_; }
  void prefetch(Addr address, Bytes size, Place to) {
    PENSTOCK_REQUIRE_OK(driver_->managed_prefetch(address, size, to, kDefaultStream));
  }
  void advise(Addr address, Bytes size, Advice advice) {
    PENSTOCK_REQUIRE_OK(driver_->managed_advise(address, size, advice));
  }
  // In, out and resident so far, in granules.
  void check_moved(Bytes in, Bytes out, Bytes resident) {
    const ManagedCounters counters = driver_->managed_counters();
    CHECK(counters.bytes_in == in * kGranule);
    CHECK(counters.bytes_out == out * kGranule);
    CHECK(counters.resident == resident * kGranule);
  }

 private:
  static std::unique_ptr<HostDriver> open(Bytes capacity) {
    auto driver = open_host_driver({.capacity = capacity});
    PENSTOCK_REQUIRE_OK(driver.status());
    return std::move(driver).value();
  }

  std::unique_ptr<HostDriver> driver_;
  Bench bench_;
};

TEST_CASE("emulated managed memory: prefetch brings in, and back") {
  Managed m(16 * kGranule);
  const Addr address = m.bench().managed(4 * kGranule);
  m.check_moved(0, 0, 0);
  m.prefetch(address, 3 * kGranule, Place::kDevice);
  m.check_moved(3, 0, 3);
  CHECK(m.bench().free_memory() == 13 * kGranule);
  m.prefetch(address, 4 * kGranule, Place::kDevice);  // only what is missing
  m.check_moved(4, 0, 4);
  m.prefetch(address + kGranule, 2 * kGranule, Place::kHost);
  m.check_moved(4, 2, 2);
  m.prefetch(address + kGranule, 2 * kGranule, Place::kHost);  // there already
  m.check_moved(4, 2, 2);
  PENSTOCK_CHECK_OK(m.driver().managed_advise(address, 1, Advice::kUnsetPreferred));
}

TEST_CASE("emulated managed memory: a part of a granule moves the granule") {
  Managed m(16 * kGranule);
  const Addr address = m.bench().managed(3 * kGranule + 5);
  m.prefetch(address + kGranule - 1, 2, Place::kDevice);
  m.check_moved(2, 0, 2);
  m.prefetch(address + 3 * kGranule + 4, 1, Place::kDevice);
  m.check_moved(3, 0, 3);
}

TEST_CASE("emulated managed memory: the least recently migrated is evicted, and written back") {
  Managed m(4 * kGranule);
  const Addr address = m.bench().managed(6 * kGranule);
  m.prefetch(address, 4 * kGranule, Place::kDevice);
  m.check_moved(4, 0, 4);
  m.prefetch(address, kGranule, Place::kDevice);  // resident: moves nothing, but is recent now
  m.check_moved(4, 0, 4);
  m.prefetch(address + 4 * kGranule, kGranule, Place::kDevice);  // evicts the second
  m.check_moved(5, 1, 4);
  m.prefetch(address, kGranule, Place::kDevice);  // the first has stayed
  m.check_moved(5, 1, 4);
  m.prefetch(address + kGranule, kGranule, Place::kDevice);  // the second has not
  m.check_moved(6, 2, 4);
}

TEST_CASE("emulated managed memory: a cyclic sweep larger than the device hits nothing") {
  Managed m(4 * kGranule);
  const Addr address = m.bench().managed(5 * kGranule);
  for (int round = 0; round < 3; ++round) m.prefetch(address, 5 * kGranule, Place::kDevice);
  m.check_moved(15, 11, 4);
}

TEST_CASE("emulated managed memory: evicting under ReadMostly copies nothing") {
  Managed m(4 * kGranule);
  const Addr address = m.bench().managed(8 * kGranule);
  m.advise(address, 8 * kGranule, Advice::kReadMostly);
  m.prefetch(address, 8 * kGranule, Place::kDevice);
  m.check_moved(8, 0, 4);
}

TEST_CASE("emulated managed memory: under ReadMostly the host cannot call a copy back") {
  Managed m(8 * kGranule);
  const Addr address = m.bench().managed(2 * kGranule);
  m.advise(address, 2 * kGranule, Advice::kReadMostly);
  m.prefetch(address, 2 * kGranule, Place::kDevice);
  m.prefetch(address, 2 * kGranule, Place::kHost);
  m.check_moved(2, 0, 2);  // the device copy stays
  m.advise(address, 2 * kGranule, Advice::kPreferHost);
  m.check_moved(2, 0, 2);
  m.advise(address, 2 * kGranule, Advice::kUnsetReadMostly);  // collapses to the host's
  m.check_moved(2, 0, 0);
}

TEST_CASE("emulated managed memory: ReadMostly ends with the preferred copy") {
  Managed m(8 * kGranule);
  const Addr address = m.bench().managed(kGranule);
  m.advise(address, kGranule, Advice::kReadMostly);
  m.advise(address, kGranule, Advice::kPreferDevice);
  m.prefetch(address, kGranule, Place::kDevice);
  m.advise(address, kGranule, Advice::kUnsetReadMostly);
  m.check_moved(1, 0, 1);
  m.prefetch(address, kGranule, Place::kHost);  // the only copy: it must travel
  m.check_moved(1, 1, 0);
}

TEST_CASE("emulated managed memory: ReadMostly set late makes the host copy by a copy") {
  Managed m(8 * kGranule);
  const Addr address = m.bench().managed(kGranule);
  m.prefetch(address, kGranule, Place::kDevice);
  m.advise(address, kGranule, Advice::kReadMostly);
  m.prefetch(address, kGranule, Place::kHost);
  m.check_moved(1, 1, 1);
  m.prefetch(address, kGranule, Place::kHost);
  m.check_moved(1, 1, 1);
}

TEST_CASE("emulated managed memory: chunks push it out, and it never pushes chunks") {
  Managed m(4 * kGranule);
  const Addr address = m.bench().managed(4 * kGranule);
  m.prefetch(address, 4 * kGranule, Place::kDevice);
  const Chunk chunk = m.bench().chunk(3 * kGranule);
  m.check_moved(4, 3, 1);
  CHECK(m.bench().free_memory() == 0);
  m.prefetch(address, 4 * kGranule, Place::kDevice);  // one granule of room for four
  CHECK(m.driver().managed_counters().resident == kGranule);
  m.bench().chunk(kGranule);
  CHECK(m.driver().managed_counters().resident == 0);
  m.prefetch(address, kGranule, Place::kDevice);  // no room at all: it stays on the host
  CHECK(m.driver().managed_counters().resident == 0);
  m.bench().release(chunk);
  m.prefetch(address, 4 * kGranule, Place::kDevice);
  CHECK(m.driver().managed_counters().resident == 3 * kGranule);
}

TEST_CASE("emulated managed memory: freeing gives device memory back") {
  Managed m(8 * kGranule);
  const auto address = m.driver().managed_alloc(4 * kGranule);
  PENSTOCK_REQUIRE_OK(address.status());
  m.prefetch(address.value(), 4 * kGranule, Place::kDevice);
  PENSTOCK_REQUIRE_OK(m.driver().managed_free(address.value()));
  m.check_moved(4, 0, 0);
  CHECK(m.bench().free_memory() == 8 * kGranule);
  const Addr other = m.bench().managed(8 * kGranule);
  m.prefetch(other, 8 * kGranule, Place::kDevice);
  m.check_moved(12, 0, 8);
}

TEST_CASE("emulated managed memory: prefetch keeps its place in the stream") {
  Managed m(8 * kGranule);
  const Addr address = m.bench().managed(kGranule);
  const Stream stream = m.bench().stream();
  Bytes before = 1;
  Bytes after = 0;
  const auto look = [&](Bytes& seen) {
    return [&seen, &m] { seen = m.driver().managed_counters().resident; };
  };
  PENSTOCK_REQUIRE_OK(m.driver().launch(stream, look(before)));
  PENSTOCK_REQUIRE_OK(m.driver().managed_prefetch(address, kGranule, Place::kDevice, stream));
  PENSTOCK_REQUIRE_OK(m.driver().launch(stream, look(after)));
  PENSTOCK_REQUIRE_OK(m.driver().synchronize(stream));
  CHECK(before == 0);
  CHECK(after == kGranule);
}

}  // namespace
}  // namespace penstock::driver
