// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "conformance_bench.hpp"

namespace penstock::driver::conformance {

void require_ok(const Status& status, const char* what, const char* file, int line) {
  if (!status.ok()) ADD_FAIL_AT(file, line, what << ": " << status.message());
}

void check_ok(const Status& status, const char* what, const char* file, int line) {
  if (!status.ok()) ADD_FAIL_CHECK_AT(file, line, what << ": " << status.message());
}

void check_code(const Status& status, Code code, const char* what, const char* file, int line) {
  if (status.code() == code && (code == Code::kOk || !status.message().empty())) return;
  ADD_FAIL_CHECK_AT(file, line,
                    what << ": code " << static_cast<int>(status.code()) << ", not "
                         << static_cast<int>(code) << ": " << status.message());
}

ByteVector pattern(Bytes size, std::uint64_t seed) {
  ByteVector bytes(size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (Bytes index = 0; index < size; index += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + index, &state, std::min<Bytes>(sizeof(state), size - index));
  }
  return bytes;
}

Bench::~Bench() {
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

Addr Bench::range(Bytes size) {
  auto got = driver_.reserve(size);
  PENSTOCK_REQUIRE_OK(got.status());
  ranges_.emplace_back(got.value(), size);
  return got.value();
}

Chunk Bench::chunk(Bytes size, Place place) {
  auto got = driver_.create_chunk(size, place);
  PENSTOCK_REQUIRE_OK(got.status());
  chunks_.push_back(got.value());
  return got.value();
}

void Bench::map(Addr address, Bytes size, Chunk chunk) {
  PENSTOCK_REQUIRE_OK(driver_.map(address, size, chunk));
  mappings_.emplace_back(address, size);
  PENSTOCK_REQUIRE_OK(driver_.set_access(address, size));
}

void Bench::unmap(Addr address, Bytes size) {
  PENSTOCK_REQUIRE_OK(driver_.unmap(address, size));
  std::erase_if(mappings_, [&](const auto& mapping) {
    return mapping.first >= address && mapping.first < address + size;
  });
}

void Bench::release(Chunk chunk) {
  PENSTOCK_REQUIRE_OK(driver_.release_chunk(chunk));
  std::erase(chunks_, chunk);
}

// A range backed by chunks of these sizes, one after the other.
Addr Bench::backed(std::vector<Bytes> chunk_sizes, Place place) {
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

Stream Bench::stream() {
  auto got = driver_.create_stream();
  PENSTOCK_REQUIRE_OK(got.status());
  streams_.push_back(got.value());
  return got.value();
}

Event Bench::event(bool timing) {
  auto got = driver_.create_event(timing);
  PENSTOCK_REQUIRE_OK(got.status());
  events_.push_back(got.value());
  return got.value();
}

std::uint8_t* Bench::page_locked(Bytes size) {
  auto got = driver_.host_alloc(size);
  PENSTOCK_REQUIRE_OK(got.status());
  page_locked_.push_back(got.value());
  return static_cast<std::uint8_t*>(got.value());
}

Addr Bench::managed(Bytes size) {
  auto got = driver_.managed_alloc(size);
  PENSTOCK_REQUIRE_OK(got.status());
  managed_.push_back(got.value());
  return got.value();
}

void Bench::write(Addr to, const ByteVector& bytes) {
  PENSTOCK_REQUIRE_OK(driver_.copy_in(to, bytes.data(), bytes.size(), kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver_.synchronize(kDefaultStream));
}

ByteVector Bench::read(Addr from, Bytes size) {
  ByteVector bytes(size);
  PENSTOCK_REQUIRE_OK(driver_.copy_out(bytes.data(), from, size, kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver_.synchronize(kDefaultStream));
  return bytes;
}

Bytes Bench::free_memory() {
  auto info = driver_.memory_info();
  PENSTOCK_REQUIRE_OK(info.status());
  return info.value().free;
}

void keep_busy(Driver& driver, Stream stream, Addr address, const std::uint8_t* source) {
  for (int copy = 0; copy < 16; ++copy) {
    PENSTOCK_REQUIRE_OK(driver.copy_in(address, source, sizeable(driver), stream));
  }
}

void require_soon(Driver& driver, Event event, const char* what) {
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
