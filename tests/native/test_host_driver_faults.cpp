// SPDX-License-Identifier: Apache-2.0
// Fault injection: a small run is made to fail at each of its calls in turn, and what it had made
// by then can always be taken away.
#include <string>
#include <vector>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

// A run that uses every call that can fail, and remembers what to take away.
class Script {
 public:
  explicit Script(HostDriver& driver) : driver_(driver) {}

  Status run() {
    PENSTOCK_TRY(make());
    PENSTOCK_TRY(use());
    return ask();
  }

  // Calls that tear down are never made to fail.
  void clean_up() {
    for (const Stream stream : streams_) PENSTOCK_CHECK_OK(driver_.synchronize(stream));
    for (const Event event : events_) PENSTOCK_CHECK_OK(driver_.synchronize(event));
    for (const Event event : events_) PENSTOCK_CHECK_OK(driver_.query(event));
    for (const Stream stream : streams_) PENSTOCK_CHECK_OK(driver_.destroy_stream(stream));
    for (const Event event : events_) PENSTOCK_CHECK_OK(driver_.destroy_event(event));
    for (const Addr address : mapped_) PENSTOCK_CHECK_OK(driver_.unmap(address, kSize));
    for (const Chunk chunk : chunks_) PENSTOCK_CHECK_OK(driver_.release_chunk(chunk));
    for (const Addr address : ranges_) PENSTOCK_CHECK_OK(driver_.unreserve(address, 2 * kSize));
    for (void* pointer : page_locked_) PENSTOCK_CHECK_OK(driver_.host_free(pointer));
    for (const Addr address : managed_) PENSTOCK_CHECK_OK(driver_.managed_free(address));
  }

 private:
  static constexpr Bytes kSize = 2 * kMiB;

  template <class Value>
  static Status keep(std::vector<Value>& where, Result<Value> result) {
    if (result.ok()) where.push_back(result.value());
    return result.status();
  }

  Status map(Addr address, Chunk chunk) {
    PENSTOCK_TRY(driver_.map(address, kSize, chunk));
    mapped_.push_back(address);
    return driver_.set_access(address, kSize);
  }

  Status make() {
    PENSTOCK_TRY(keep(ranges_, driver_.reserve(2 * kSize)));
    PENSTOCK_TRY(keep(chunks_, driver_.create_chunk(kSize, Place::kDevice)));
    PENSTOCK_TRY(keep(chunks_, driver_.create_chunk(kSize, Place::kHost)));
    PENSTOCK_TRY(map(ranges_[0], chunks_[0]));
    PENSTOCK_TRY(map(ranges_[0] + kSize, chunks_[1]));
    PENSTOCK_TRY(keep(page_locked_, driver_.host_alloc(kSize)));
    PENSTOCK_TRY(keep(managed_, driver_.managed_alloc(kSize)));
    PENSTOCK_TRY(keep(streams_, driver_.create_stream()));
    PENSTOCK_TRY(keep(streams_, driver_.create_stream()));
    PENSTOCK_TRY(keep(events_, driver_.create_event(true)));
    return keep(events_, driver_.create_event(true));
  }

  Status use() {
    const Addr device = ranges_[0];
    PENSTOCK_TRY(driver_.record(events_[0], streams_[0]));
    PENSTOCK_TRY(driver_.fill(device, 1, kSize, streams_[0]));
    PENSTOCK_TRY(driver_.copy_in(device, page_locked_[0], 1000, streams_[0]));
    PENSTOCK_TRY(driver_.copy_within(device + kSize, device, 1000, streams_[0]));
    PENSTOCK_TRY(driver_.record(events_[1], streams_[0]));
    PENSTOCK_TRY(driver_.wait(streams_[1], events_[1]));
    PENSTOCK_TRY(driver_.copy_out(page_locked_[0], device + kSize, 1000, streams_[1]));
    PENSTOCK_TRY(driver_.launch(streams_[1], [] {}));
    PENSTOCK_TRY(driver_.managed_advise(managed_[0], kSize, Advice::kReadMostly));
    PENSTOCK_TRY(driver_.managed_prefetch(managed_[0], kSize, Place::kDevice, streams_[1]));
    return driver_.synchronize(events_[1]);
  }

  Status ask() {
    PENSTOCK_TRY(driver_.memory_info().status());
    return driver_.elapsed_ms(events_[0], events_[1]).status();
  }

  HostDriver& driver_;
  std::vector<Addr> ranges_;
  std::vector<Chunk> chunks_;
  std::vector<Addr> mapped_;
  std::vector<void*> page_locked_;
  std::vector<Addr> managed_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
};

std::unique_ptr<HostDriver> open(std::int64_t fail_at_call) {
  auto driver = open_host_driver({.capacity = 16 * kMiB, .fail_at_call = fail_at_call});
  PENSTOCK_REQUIRE_OK(driver.status());
  return std::move(driver).value();
}

constexpr std::int64_t kCalls = 25;  // in Script::run()

TEST_CASE("emulated GPU: counts the calls that can fail, and no others") {
  const auto driver = open(0);
  CHECK(driver->calls() == 0);
  Script script(*driver);
  PENSTOCK_CHECK_OK(script.run());
  CHECK(driver->calls() == kCalls);
  script.clean_up();
  CHECK(driver->calls() == kCalls);
  CHECK(driver->live() == LiveCounts{});
}

TEST_CASE("emulated GPU: any call can fail, and leaves nothing behind") {
  for (std::int64_t index = 1; index <= kCalls; ++index) {
    CAPTURE(index);
    const auto driver = open(index);
    Script script(*driver);
    const Status status = script.run();
    CHECK_FALSE(status.ok());
    CHECK(status.message() == "injected failure at call " + std::to_string(index));
    CHECK(driver->calls() == index);
    script.clean_up();
    CHECK(driver->live() == LiveCounts{});
    const auto memory = driver->memory_info();  // only the one call fails
    PENSTOCK_REQUIRE_OK(memory.status());
    CHECK(memory.value().free == 16 * kMiB);
  }
}

TEST_CASE("emulated GPU: an injected failure looks like the real one") {
  const auto fails_with = [](Code code, auto call) {
    const auto driver = open(1);
    PENSTOCK_CHECK_CODE(call(*driver), code);
  };
  fails_with(Code::kOutOfMemory, [](HostDriver& d) { return d.reserve(2 * kMiB).status(); });
  fails_with(Code::kOutOfMemory,
             [](HostDriver& d) { return d.create_chunk(2 * kMiB, Place::kDevice).status(); });
  fails_with(Code::kHostOutOfMemory,
             [](HostDriver& d) { return d.create_chunk(2 * kMiB, Place::kHost).status(); });
  fails_with(Code::kHostOutOfMemory, [](HostDriver& d) { return d.host_alloc(1).status(); });
  fails_with(Code::kOutOfMemory, [](HostDriver& d) { return d.managed_alloc(1).status(); });
  fails_with(Code::kOutOfMemory, [](HostDriver& d) { return d.create_stream().status(); });
  fails_with(Code::kOutOfMemory, [](HostDriver& d) { return d.create_event(false).status(); });
  fails_with(Code::kDriver, [](HostDriver& d) { return d.memory_info().status(); });
  fails_with(Code::kDriver, [](HostDriver& d) { return d.fill(0, 0, 0, kDefaultStream); });
}

}  // namespace
}  // namespace penstock::driver
