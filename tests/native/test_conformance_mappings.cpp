// SPDX-License-Identifier: Apache-2.0
// Conformance: chunks mapped into ranges, shared, replaced and taken away.
#include <algorithm>
#include <thread>
#include <vector>

#include "conformance.hpp"
#include "conformance_bench.hpp"

namespace penstock::driver::conformance {
namespace {

void round_trip(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({2 * bench.granule, bench.granule, 4 * bench.granule});
  const ByteVector bytes = pattern(7 * bench.granule, 2);
  bench.write(address, bytes);
  CHECK(bench.read(address, bytes.size()) == bytes);
}

void aliasing(Driver& driver) {
  Bench bench(driver);
  const Bytes size = 2 * bench.granule;
  const Addr first = bench.range(size);
  const Addr second = bench.range(2 * size);
  const Chunk chunk = bench.chunk(size);
  bench.map(first, size, chunk);
  bench.map(second + size, size, chunk);
  const ByteVector bytes = pattern(size, 3);
  bench.write(first, bytes);
  CHECK(bench.read(second + size, size) == bytes);
  const ByteVector other = pattern(1000, 4);
  bench.write(second + size + 77, other);
  CHECK(bench.read(first + 77, 1000) == other);
  bench.unmap(first, size);  // the other address goes on
  CHECK(bench.read(second + size + 77, 1000) == other);
}

void map_arguments(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.range(4 * granule);
  const Chunk chunk = bench.chunk(2 * granule);
  const auto refused = [&](Addr at, Bytes size, Chunk what) {
    PENSTOCK_CHECK_CODE(driver.map(at, size, what), Code::kInvalidArgument);
  };
  refused(address, granule, chunk);                    // part of the chunk
  refused(address, 4 * granule, chunk);                // more than the chunk
  refused(address + granule / 2, 2 * granule, chunk);  // not aligned
  refused(address + 3 * granule, 2 * granule, chunk);  // beyond the range
  refused(address - 2 * granule, 2 * granule, chunk);  // before the range
  refused(address, 0, chunk);
  refused(address, 2 * granule, Chunk{0xDEAD0000u});
  const Chunk released = bench.chunk(2 * granule);
  bench.release(released);
  refused(address, 2 * granule, released);
  CHECK(driver.live().mappings == 0);
  bench.map(address, 2 * granule, chunk);  // nothing of that is in the way
}

void map_occupied(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.range(6 * granule);
  bench.map(address + 2 * granule, 2 * granule, bench.chunk(2 * granule));
  const ByteVector bytes = pattern(2 * granule, 5);
  bench.write(address + 2 * granule, bytes);
  const Chunk same = bench.chunk(2 * granule);
  const Chunk large = bench.chunk(6 * granule);
  for (const Addr offset : {granule, 2 * granule, 3 * granule}) {
    PENSTOCK_CHECK_CODE(driver.map(address + offset, 2 * granule, same), Code::kInvalidArgument);
  }
  PENSTOCK_CHECK_CODE(driver.map(address, 6 * granule, large), Code::kInvalidArgument);
  CHECK(bench.read(address + 2 * granule, 2 * granule) == bytes);
  bench.map(address, 2 * granule, same);  // on either side there is room
  CHECK(bench.read(address + 2 * granule, 2 * granule) == bytes);
}

void access_over_hole(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.range(4 * granule);
  const Chunk first = bench.chunk(granule);
  const Chunk second = bench.chunk(granule);
  PENSTOCK_CHECK_CODE(driver.set_access(address, granule), Code::kInvalidArgument);
  bench.map(address, granule, first);
  bench.map(address + 2 * granule, granule, second);
  PENSTOCK_CHECK_CODE(driver.set_access(address, 3 * granule), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.set_access(address + granule, granule), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.set_access(address, 2 * granule), Code::kInvalidArgument);
  const Chunk between = bench.chunk(granule);
  bench.map(address + granule, granule, between);
  PENSTOCK_CHECK_OK(driver.set_access(address, 3 * granule));
  const ByteVector bytes = pattern(3 * granule, 6);
  bench.write(address, bytes);
  CHECK(bench.read(address, bytes.size()) == bytes);
}

void unmap_several(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.backed({granule, 2 * granule, granule, granule});
  const ByteVector bytes = pattern(5 * granule, 7);
  bench.write(address, bytes);
  bench.unmap(address + granule, 3 * granule);  // the two in the middle
  CHECK(driver.live().mappings == 2);
  CHECK(bench.read(address, granule) == ByteVector(bytes.begin(), bytes.begin() + granule));
  CHECK(bench.read(address + 4 * granule, granule) ==
        ByteVector(bytes.begin() + 4 * granule, bytes.end()));
  const auto again = driver.unmap(address + granule, 3 * granule);
  PENSTOCK_CHECK_CODE(again, Code::kInvalidArgument);
  bench.map(address + granule, 3 * granule, bench.chunk(3 * granule));
  CHECK(driver.live().mappings == 3);
}

void unmap_partial(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.range(6 * granule);
  bench.map(address, 2 * granule, bench.chunk(2 * granule));
  bench.map(address + 2 * granule, 2 * granule, bench.chunk(2 * granule));
  const ByteVector bytes = pattern(4 * granule, 8);
  bench.write(address, bytes);
  const auto refused = [&](Bytes offset, Bytes size) {
    PENSTOCK_CHECK_CODE(driver.unmap(address + offset, size), Code::kInvalidArgument);
  };
  refused(0, granule);                // the first half of one
  refused(granule, granule);          // the second half
  refused(granule, 2 * granule);      // half of either
  refused(0, 3 * granule);            // one and a half
  refused(2 * granule, 4 * granule);  // a mapping and a hole
  refused(4 * granule, granule);      // a hole
  refused(0, 0);
  CHECK(driver.live().mappings == 2);
  CHECK(bench.read(address, bytes.size()) == bytes);
}

void release_while_mapped(Driver& driver) {
  Bench bench(driver);
  const Bytes size = align_up(256 * kMiB, bench.granule);
  const Addr address = bench.range(2 * size);
  const Bytes before = bench.free_memory();
  const Chunk chunk = bench.chunk(size);
  bench.map(address, size, chunk);
  bench.map(address + size, size, chunk);
  const ByteVector bytes = pattern(bench.granule, 9);
  bench.write(address, bytes);
  bench.release(chunk);
  bench.unmap(address, size);
  CHECK(bench.read(address + size, bytes.size()) == bytes);
  CHECK(bench.free_memory() <= before - size + slack(driver));
  PENSTOCK_CHECK_CODE(driver.map(address, size, chunk), Code::kInvalidArgument);
  bench.unmap(address + size, size);
  CHECK(bench.free_memory() + slack(driver) >= before);
}

// Paging in small: the address stays, what is behind it changes.
void change_backing(Driver& driver) {
  Bench bench(driver);
  const Bytes size = 2 * bench.granule;
  const Addr address = bench.range(size);
  const std::vector<Chunk> chunks = {bench.chunk(size), bench.chunk(size), bench.chunk(size)};
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    bench.map(address, size, chunks[index]);
    bench.write(address, pattern(size, 10 + index));
    bench.unmap(address, size);
  }
  for (const std::size_t index : {1u, 0u, 2u, 0u}) {
    bench.map(address, size, chunks[index]);
    CHECK(bench.read(address, size) == pattern(size, 10 + index));
    bench.unmap(address, size);
  }
}

void host_chunks(Driver& driver) {
  Bench bench(driver);
  if (!driver.info().host_chunks) {
    const auto refused = driver.create_chunk(bench.granule, Place::kHost);
    PENSTOCK_CHECK_CODE(refused.status(), Code::kUnsupported);
    return;
  }
  const Bytes size = align_up(128 * kMiB, bench.granule);
  const Bytes before = bench.free_memory();
  const Addr address = bench.backed({size}, Place::kHost);
  CHECK(bench.free_memory() + slack(driver) >= before);  // device memory is not touched
  const ByteVector bytes = pattern(3 * bench.granule + 5, 14);
  bench.write(address + 3, bytes);
  CHECK(bench.read(address + 3, bytes.size()) == bytes);
  const Addr device = bench.backed({4 * bench.granule});
  PENSTOCK_REQUIRE_OK(driver.copy_within(device, address + 3, bytes.size(), kDefaultStream));
  CHECK(bench.read(device, bytes.size()) == bytes);
}

// Enough work that a call which waited for it would find it done.  Whether the work is still
// running afterwards is a race that waiting loses every time and not waiting wins almost always.
void unmap_does_not_wait(Driver& driver) {
  Bench bench(driver);
  const Bytes size = sizeable(driver);
  const Addr busy = bench.backed({size});
  const Addr idle = bench.range(bench.granule);
  const Chunk chunk = bench.chunk(bench.granule);
  std::uint8_t* source = bench.page_locked(size);
  std::fill_n(source, size, std::uint8_t{1});
  const Stream stream = bench.stream();
  const Event done = bench.event();
  bool still_running = false;
  for (int attempt = 0; attempt < 20 && !still_running; ++attempt) {
    bench.map(idle, bench.granule, chunk);
    keep_busy(driver, stream, busy, source);
    PENSTOCK_REQUIRE_OK(driver.record(done, stream));
    bench.unmap(idle, bench.granule);
    still_running = driver.query(done).code() == Code::kNotReady;
    PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  }
  CHECK(still_running);
}

void page_to_and_fro(Driver& driver, std::uint64_t seed) {
  Bench bench(driver, /*alone=*/false);
  const Addr address = bench.range(4 * bench.granule);
  for (int round = 0; round < 8; ++round) {
    const Bytes size = bench.granule * (1 + (seed + round) % 2);
    const Chunk chunk = bench.chunk(size);
    bench.map(address + bench.granule, size, chunk);
    const ByteVector bytes = pattern(4099, 100 * seed + round);
    bench.write(address + bench.granule + 11, bytes);
    CHECK(bench.read(address + bench.granule + 11, bytes.size()) == bytes);
    bench.unmap(address + bench.granule, size);
    bench.release(chunk);
  }
}

void many_threads(Driver& driver) {
  const LiveCounts before = driver.live();
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&driver, seed] {
      try {
        page_to_and_fro(driver, seed);
      } catch (...) {  // a failed REQUIRE, which has been told already
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(driver.live() == before);
}

}  // namespace

std::vector<Rule> rules_of_mappings() {
  return {
      {"what is copied in comes out", round_trip},
      {"one chunk at two addresses is one memory", aliasing},
      {"map refuses what it cannot do and leaves nothing behind", map_arguments},
      {"an occupied address is refused, its mapping unharmed", map_occupied},
      {"set_access covers adjacent mappings and refuses a hole", access_over_hole},
      {"unmap takes several adjacent mappings at once", unmap_several},
      {"unmap refuses part of a mapping and leaves it intact", unmap_partial},
      {"a released chunk lives until its last mapping goes", release_while_mapped},
      {"a range keeps its address while its backing changes", change_backing},
      {"host chunks back a range like device chunks", host_chunks},
      {"unmap does not wait for unrelated work", unmap_does_not_wait},
      {"every thread may map and unmap", many_threads},
  };
}

}  // namespace penstock::driver::conformance
