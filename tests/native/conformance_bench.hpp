// SPDX-License-Identifier: Apache-2.0
// What the conformance rules share: a Bench makes objects on a driver and takes them all away
// again, checking that live() comes back to where it was; patterns tell bytes apart.
#pragma once

#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "driver/driver.hpp"

// A Status that must be good; REQUIRE ends the test where it is not, CHECK goes on.
#define PENSTOCK_REQUIRE_OK(expression) \
  ::penstock::driver::conformance::require_ok((expression), #expression, __FILE__, __LINE__)
#define PENSTOCK_CHECK_OK(expression) \
  ::penstock::driver::conformance::check_ok((expression), #expression, __FILE__, __LINE__)
// A Status that must be this failure, and say something about it.
#define PENSTOCK_CHECK_CODE(expression, code) \
  ::penstock::driver::conformance::check_code((expression), code, #expression, __FILE__, __LINE__)

namespace penstock::driver {

inline std::ostream& operator<<(std::ostream& out, const LiveCounts& of) {
  return out << of.ranges << " ranges, " << of.chunks << " chunks, " << of.mappings
             << " mappings, host allocations " << of.host_allocations << ", managed ones "
             << of.managed_allocations << ", " << of.streams << " streams, " << of.events
             << " events";
}

}  // namespace penstock::driver

namespace penstock::driver::conformance {

void require_ok(const Status& status, const char* what, const char* file, int line);
void check_ok(const Status& status, const char* what, const char* file, int line);
void check_code(const Status& status, Code code, const char* what, const char* file, int line);

using ByteVector = std::vector<std::uint8_t>;

// Bytes that differ by seed, by position and between positions a power of two apart.
ByteVector pattern(Bytes size, std::uint64_t seed);

class Bench {
 public:
  // `alone`: nobody else makes or takes objects meanwhile, so that live() can be compared.
  explicit Bench(Driver& driver, bool alone = true)
      : granule(driver.info().granularity),
        driver_(driver),
        alone_(alone),
        before_(driver.live()) {}
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Addr range(Bytes size);
  Chunk chunk(Bytes size, Place place = Place::kDevice);
  void map(Addr address, Bytes size, Chunk chunk);  // with access
  void unmap(Addr address, Bytes size);
  void release(Chunk chunk);
  Addr backed(std::vector<Bytes> chunk_sizes, Place place = Place::kDevice);
  Stream stream();
  Event event(bool timing = false);
  std::uint8_t* page_locked(Bytes size);
  Addr managed(Bytes size);

  void write(Addr to, const ByteVector& bytes);
  ByteVector read(Addr from, Bytes size);
  Bytes free_memory();

  const Bytes granule;

 private:
  Driver& driver_;
  const bool alone_;
  const LiveCounts before_;
  std::vector<std::pair<Addr, Bytes>> ranges_;
  std::vector<std::pair<Addr, Bytes>> mappings_;
  std::vector<Chunk> chunks_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::vector<void*> page_locked_;
  std::vector<Addr> managed_;
};

// On a real card others take and give memory as well, and the driver keeps some for itself.
inline Bytes slack(Driver& driver) { return driver.info().emulated ? 0 : 64 * kMiB; }

// Enough for a copy to take far longer than a call: some 0.6 ms at the speed of an H200's link.
inline Bytes sizeable(Driver& driver) { return (driver.info().emulated ? 4 : 32) * kMiB; }

// Puts work into the stream that takes far longer than giving it.
void keep_busy(Driver& driver, Stream stream, Addr address, const std::uint8_t* source);

// A stream that never gets there would hang the test and whatever waits for it: stop the process.
void require_soon(Driver& driver, Event event, const char* what);

}  // namespace penstock::driver::conformance
