// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's own promises beside the contract: its capacities are exact to the byte, its
// memory does not fragment, it refuses handles it did not make, and a forked child is harmless.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

using conformance::Bench;
using conformance::pattern;

std::unique_ptr<HostDriver> open(const HostDriverOptions& options) {
  auto driver = open_host_driver(options);
  PENSTOCK_REQUIRE_OK(driver.status());
  return std::move(driver).value();
}

bool says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

TEST_CASE("emulated GPU: refuses options that make no sense") {
  for (const Bytes granularity : {Bytes{0}, Bytes{512}, 3 * kMiB, 2 * kMiB + 1}) {
    PENSTOCK_CHECK_CODE(open_host_driver({.granularity = granularity}).status(),
                        Code::kInvalidArgument);
  }
  PENSTOCK_CHECK_CODE(open_host_driver({.capacity = 0}).status(), Code::kInvalidArgument);
}

TEST_CASE("emulated GPU: says that it is one") {
  const auto driver = open({.capacity = 96 * kMiB, .granularity = 64 * kKiB});
  CHECK(driver->info().emulated);
  CHECK(driver->info().total == 96 * kMiB);
  CHECK(driver->info().granularity == 64 * kKiB);
}

TEST_CASE("emulated GPU: device memory ends exactly at the capacity") {
  const auto driver = open({.capacity = 7 * kMiB});  // not a multiple of the granularity
  Bench bench(*driver);
  const Chunk first = bench.chunk(4 * kMiB);
  bench.chunk(2 * kMiB);
  CHECK(bench.free_memory() == kMiB);
  const Status refused = driver->create_chunk(2 * kMiB, Place::kDevice).status();
  PENSTOCK_CHECK_CODE(refused, Code::kOutOfMemory);
  CHECK(says(refused, "2 MiB asked, 1 MiB free of 7 MiB"));
  bench.release(first);
  bench.chunk(4 * kMiB);
  CHECK(bench.free_memory() == kMiB);
}

TEST_CASE("emulated GPU: a mapping keeps the memory of a released chunk from others") {
  const auto driver = open({.capacity = 8 * kMiB});
  Bench bench(*driver);
  const Addr address = bench.range(6 * kMiB);
  const Chunk chunk = bench.chunk(6 * kMiB);
  bench.map(address, 6 * kMiB, chunk);
  bench.release(chunk);
  PENSTOCK_CHECK_CODE(driver->create_chunk(4 * kMiB, Place::kDevice).status(), Code::kOutOfMemory);
  bench.unmap(address, 6 * kMiB);
  bench.chunk(8 * kMiB);
}

TEST_CASE("emulated GPU: physical memory does not fragment, and comes back zeroed") {
  const auto driver = open({.capacity = 32 * kMiB});
  Bench bench(*driver);
  std::vector<Chunk> chunks;
  for (int index = 0; index < 16; ++index) chunks.push_back(bench.chunk(2 * kMiB));
  const Addr address = bench.range(48 * kMiB);
  for (std::size_t index = 0; index < 16; ++index) {
    bench.map(address + index * 2 * kMiB, 2 * kMiB, chunks[index]);
    bench.write(address + index * 2 * kMiB, pattern(2 * kMiB, index));
  }
  for (std::size_t index = 0; index < 16; index += 2) {  // every other one goes
    bench.unmap(address + index * 2 * kMiB, 2 * kMiB);
    bench.release(chunks[index]);
  }
  const Bytes large = 14 * kMiB;  // larger than any hole
  bench.map(address + 32 * kMiB, large, bench.chunk(large));
  CHECK(bench.read(address + 32 * kMiB, large) == conformance::ByteVector(large, 0));
  bench.map(address, 2 * kMiB, bench.chunk(2 * kMiB));  // where another has been
  CHECK(bench.read(address, 2 * kMiB) == conformance::ByteVector(2 * kMiB, 0));
  for (std::size_t index = 1; index < 16; index += 2) {
    CHECK(bench.read(address + index * 2 * kMiB, 2 * kMiB) == pattern(2 * kMiB, index));
  }
}

TEST_CASE("emulated GPU: page-locked memory ends exactly at the host capacity") {
  const auto driver = open({.host_capacity = 2 * kMiB + 10000});
  Bench bench(*driver);
  bench.page_locked(9999);
  const Chunk chunk = bench.chunk(2 * kMiB, Place::kHost);  // the same purse
  const Status refused = driver->host_alloc(2).status();
  PENSTOCK_CHECK_CODE(refused, Code::kHostOutOfMemory);
  CHECK(says(refused, "2 bytes asked, 1 bytes left"));
  bench.page_locked(1);
  PENSTOCK_CHECK_CODE(driver->create_chunk(2 * kMiB, Place::kHost).status(),
                      Code::kHostOutOfMemory);
  bench.release(chunk);
  bench.page_locked(2 * kMiB);
}

TEST_CASE("emulated GPU: refuses streams and events it did not make") {
  const auto driver = open({});
  Bench bench(*driver);
  const Stream stream = bench.stream();
  const Event event = bench.event();
  const Stream no_stream{999};
  const Event no_event{999};
  const auto refused = [](const Status& status) {
    PENSTOCK_CHECK_CODE(status, Code::kInvalidArgument);
  };
  refused(driver->synchronize(no_stream));
  refused(driver->destroy_stream(no_stream));
  refused(driver->destroy_stream(kDefaultStream));
  refused(driver->fill(0, 0, 0, no_stream));
  refused(driver->launch(no_stream, [] {}));
  refused(driver->record(event, no_stream));
  PENSTOCK_CHECK_OK(driver->query(event));  // that did not make it pending for ever
  refused(driver->record(no_event, stream));
  refused(driver->wait(stream, no_event));
  refused(driver->wait(no_stream, event));
  refused(driver->query(no_event));
  refused(driver->synchronize(no_event));
  refused(driver->destroy_event(no_event));
  refused(driver->elapsed_ms(no_event, no_event).status());
}

TEST_CASE("emulated GPU: a stream refuses to be waited for by its own work") {
  const auto driver = open({});
  Bench bench(*driver);
  const Stream stream = bench.stream();
  Status waited;
  Status destroyed;
  PENSTOCK_REQUIRE_OK(driver->launch(stream, [&] {
    waited = driver->synchronize(stream);
    destroyed = driver->destroy_stream(stream);
  }));
  PENSTOCK_REQUIRE_OK(driver->synchronize(stream));
  PENSTOCK_CHECK_CODE(waited, Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(destroyed, Code::kInvalidArgument);
}

TEST_CASE("emulated GPU: goes with everything in it, after the work in its streams") {
  int done = 0;
  {
    const auto driver = open({.seed = 3, .max_delay_us = 200});
    const Addr address = driver->reserve(4 * kMiB).value();
    const Chunk chunk = driver->create_chunk(4 * kMiB, Place::kDevice).value();
    PENSTOCK_REQUIRE_OK(driver->map(address, 4 * kMiB, chunk));
    PENSTOCK_REQUIRE_OK(driver->set_access(address, 4 * kMiB));
    void* source = driver->host_alloc(4 * kMiB).value();
    CHECK(driver->managed_alloc(kMiB).ok());
    CHECK(driver->create_event(true).ok());
    const Stream stream = driver->create_stream().value();
    for (int round = 0; round < 20; ++round) {
      PENSTOCK_REQUIRE_OK(driver->copy_in(address, source, 4 * kMiB, stream));
      PENSTOCK_REQUIRE_OK(driver->launch(stream, [&done] { ++done; }));
    }
  }
  CHECK(done == 20);
}

TEST_CASE("emulated GPU: a forked child may even destroy it without harm to the parent") {
  auto driver = open({.capacity = 16 * kMiB});
  Bench bench(*driver);
  const Addr address = bench.backed({4 * kMiB});
  const auto bytes = pattern(4 * kMiB, 70);
  bench.write(address, bytes);
  const Stream stream = bench.stream();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that waits for threads it does not have must not hang the test
    driver.reset();
    _exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(bench.read(address, bytes.size()) == bytes);
  PENSTOCK_CHECK_OK(driver->fill(address, 1, 4 * kMiB, stream));
  PENSTOCK_CHECK_OK(driver->synchronize(stream));
}

}  // namespace
}  // namespace penstock::driver
