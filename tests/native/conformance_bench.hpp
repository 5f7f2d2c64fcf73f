// SPDX-License-Identifier: Apache-2.0
// What the conformance rules share: a Bench makes objects on a driver and takes them all away
// again, checking that live() comes back to where it was; patterns tell bytes apart.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "driver/driver.hpp"

// A Status that must be good, with its message where it is not.
#define PENSTOCK_REQUIRE_OK(expression)                                       \
  do {                                                                        \
    const ::penstock::Status required_ = (expression);                        \
    REQUIRE_MESSAGE(required_.ok(), #expression ": " << required_.message()); \
  } while (false)

#define PENSTOCK_CHECK_OK(expression)                                     \
  do {                                                                    \
    const ::penstock::Status checked_ = (expression);                     \
    CHECK_MESSAGE(checked_.ok(), #expression ": " << checked_.message()); \
  } while (false)

// A Status that must be this failure, and say something about it.
#define PENSTOCK_CHECK_CODE(expression, expected)                                         \
  do {                                                                                    \
    const ::penstock::Status refused_ = (expression);                                     \
    CHECK_MESSAGE(refused_.code() == (expected), #expression ": " << refused_.message()); \
    CHECK_FALSE(refused_.message().empty());                                              \
  } while (false)

namespace penstock::driver::conformance {

using ByteVector = std::vector<std::uint8_t>;

// Bytes that differ by seed, by position and between positions a power of two apart.
inline ByteVector pattern(Bytes size, std::uint64_t seed) {
  ByteVector bytes(size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (Bytes index = 0; index < size; index += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + index, &state, std::min<Bytes>(sizeof(state), size - index));
  }
  return bytes;
}

inline bool operator==(const LiveCounts& a, const LiveCounts& b) {
  return a.ranges == b.ranges && a.chunks == b.chunks && a.mappings == b.mappings &&
         a.host_allocations == b.host_allocations &&
         a.managed_allocations == b.managed_allocations && a.streams == b.streams &&
         a.events == b.events;
}

class Bench {
 public:
  // `alone`: nobody else makes or takes objects meanwhile, so that live() can be compared.
  explicit Bench(Driver& driver, bool alone = true)
      : driver_(driver),
        granule(driver.info().granularity),
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

 private:
  Driver& driver_;

 public:
  const Bytes granule;

 private:
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

inline Bench::~Bench() {
  for (const Stream stream : streams_) PENSTOCK_CHECK_OK(driver_.synchronize(stream));
  for (const Stream stream : streams_) PENSTOCK_CHECK_OK(driver_.destroy_stream(stream));
  for (const Event event : events_) PENSTOCK_CHECK_OK(driver_.destroy_event(event));
  for (const auto& [at, size] : mappings_) PENSTOCK_CHECK_OK(driver_.unmap(at, size));
  for (const Chunk chunk : chunks_) PENSTOCK_CHECK_OK(driver_.release_chunk(chunk));
  for (const auto& [at, size] : ranges_) PENSTOCK_CHECK_OK(driver_.unreserve(at, size));
  for (void* pointer : page_locked_) PENSTOCK_CHECK_OK(driver_.host_free(pointer));
  for (const Addr address : managed_) PENSTOCK_CHECK_OK(driver_.managed_free(address));
  if (alone_) CHECK(driver_.live() == before_);
}

inline Addr Bench::range(Bytes size) {
  auto got = driver_.reserve(size);
  PENSTOCK_REQUIRE_OK(got.status());
  ranges_.emplace_back(got.value(), size);
  return got.value();
}

inline Chunk Bench::chunk(Bytes size, Place place) {
  auto got = driver_.create_chunk(size, place);
  PENSTOCK_REQUIRE_OK(got.status());
  chunks_.push_back(got.value());
  return got.value();
}

inline void Bench::map(Addr address, Bytes size, Chunk chunk) {
  PENSTOCK_REQUIRE_OK(driver_.map(address, size, chunk));
  mappings_.emplace_back(address, size);
  PENSTOCK_REQUIRE_OK(driver_.set_access(address, size));
}

inline void Bench::unmap(Addr address, Bytes size) {
  PENSTOCK_REQUIRE_OK(driver_.unmap(address, size));
  std::erase_if(mappings_, [&](const auto& mapping) {
    return mapping.first >= address && mapping.first < address + size;
  });
}

inline void Bench::release(Chunk chunk) {
  PENSTOCK_REQUIRE_OK(driver_.release_chunk(chunk));
  std::erase(chunks_, chunk);
}

// A range backed by chunks of these sizes, one after the other.
inline Addr Bench::backed(std::vector<Bytes> chunk_sizes, Place place) {
  Bytes total = 0;
  for (const Bytes size : chunk_sizes) total += size;
  const Addr address = range(total);
  Addr at = address;
  for (const Bytes size : chunk_sizes) {
    map(at, size, chunk(size, place));
    at += size;
  }
  return address;
}

inline Stream Bench::stream() {
  auto got = driver_.create_stream();
  PENSTOCK_REQUIRE_OK(got.status());
  streams_.push_back(got.value());
  return got.value();
}

inline Event Bench::event(bool timing) {
  auto got = driver_.create_event(timing);
  PENSTOCK_REQUIRE_OK(got.status());
  events_.push_back(got.value());
  return got.value();
}

inline std::uint8_t* Bench::page_locked(Bytes size) {
  auto got = driver_.host_alloc(size);
  PENSTOCK_REQUIRE_OK(got.status());
  page_locked_.push_back(got.value());
  return static_cast<std::uint8_t*>(got.value());
}

inline Addr Bench::managed(Bytes size) {
  auto got = driver_.managed_alloc(size);
  PENSTOCK_REQUIRE_OK(got.status());
  managed_.push_back(got.value());
  return got.value();
}

inline void Bench::write(Addr to, const ByteVector& bytes) {
  PENSTOCK_REQUIRE_OK(driver_.copy_in(to, bytes.data(), bytes.size(), kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver_.synchronize(kDefaultStream));
}

inline ByteVector Bench::read(Addr from, Bytes size) {
  ByteVector bytes(size);
  PENSTOCK_REQUIRE_OK(driver_.copy_out(bytes.data(), from, size, kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver_.synchronize(kDefaultStream));
  return bytes;
}

inline Bytes Bench::free_memory() {
  auto info = driver_.memory_info();
  PENSTOCK_REQUIRE_OK(info.status());
  return info.value().free;
}

// On a real card others take and give memory as well, and the driver keeps some for itself.
inline Bytes slack(Driver& driver) { return driver.info().emulated ? 0 : 64 * kMiB; }

// Enough for a copy to take far longer than a call: some 0.6 ms at the speed of an H200's link.
inline Bytes sizeable(Driver& driver) { return (driver.info().emulated ? 4 : 32) * kMiB; }

// Puts work into the stream that takes far longer than giving it.
inline void keep_busy(Driver& driver, Stream stream, Addr address, const std::uint8_t* source) {
  for (int copy = 0; copy < 16; ++copy) {
    PENSTOCK_REQUIRE_OK(driver.copy_in(address, source, sizeable(driver), stream));
  }
}

// A stream that never gets there would hang the test and whatever waits for it: stop the process.
inline void require_soon(Driver& driver, Event event, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (driver.query(event).code() == Code::kNotReady) {
    if (std::chrono::steady_clock::now() > deadline) {
      MESSAGE("never happened: " << what);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace penstock::driver::conformance
