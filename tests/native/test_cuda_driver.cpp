// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's own promises, against the emulated libcuda.so.1 of emulated_cuda.cpp: which
// drivers it refuses, whose context it uses, how it fails and how it ends.  Where another
// libcuda.so.1 or none is found these tests say that they have tested nothing.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "conformance_bench.hpp"
#include "emulated_cuda.hpp"

namespace penstock::driver {
namespace {

using conformance::Bench;
using cuda::EmulatedCuda;

EmulatedCuda* emulation() {
  static EmulatedCuda* const dials = []() -> EmulatedCuda* {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    void* found = dlsym(library, "penstock_emulated_cuda");
    return found == nullptr ? nullptr : reinterpret_cast<EmulatedCuda* (*)()>(found)();
  }();
  if (dials == nullptr) MESSAGE("no emulated libcuda.so.1: nothing tested");
  return dials;
}

std::unique_ptr<Driver> open() {
  auto driver = open_cuda_driver(0);
  PENSTOCK_REQUIRE_OK(driver.status());
  return std::move(driver).value();
}

bool says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

TEST_CASE("CUDA: a driver that is too old is refused, with both versions") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  cuda->version = 11080;
  const Status refused = open_cuda_driver(0).status();
  cuda->version = 12020;
  const Status oldest = open_cuda_driver(0).status();
  cuda->version = 13000;
  PENSTOCK_CHECK_CODE(refused, Code::kUnsupported);
  CHECK(says(refused, "11.8"));
  CHECK(says(refused, "12.2"));
  PENSTOCK_CHECK_OK(oldest);
}

TEST_CASE("CUDA: a driver without a GPU says what to look at") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const int before = cuda->contexts;
  for (const int error : {100, 34, 999}) {
    cuda->init_error = error;
    const Status refused = open_cuda_driver(0).status();
    cuda->init_error = 0;
    PENSTOCK_CHECK_CODE(refused, Code::kNoDevice);
  }
  CHECK(cuda->contexts.load() == before);
}

TEST_CASE("CUDA: describes the device") {
  if (emulation() == nullptr) return;
  const auto driver = open();
  const DeviceInfo& info = driver->info();
  CHECK(info.name == "emulated GPU behind libcuda");
  CHECK(info.compute_capability == 90);
  CHECK(info.driver_version == 13000);
  CHECK(info.total == 2 * kGiB);
  CHECK(info.granularity == 2 * kMiB);
  CHECK(info.virtual_memory);
  CHECK(info.host_chunks);
  CHECK(info.managed);
  CHECK(info.concurrent_managed);
  CHECK_FALSE(info.emulated);
}

TEST_CASE("CUDA: the primary context is retained as long as the driver lives") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const int before = cuda->contexts;
  {
    const auto first = open();
    const auto second = open();
    CHECK(cuda->contexts.load() == before + 2);
  }
  CHECK(cuda->contexts.load() == before);
}

TEST_CASE("CUDA: a thread's own context and capture mode are as they were after every call") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  CHECK(cuda->depth() == 0);
  int other = 0;
  cuda->push(&other);
  {
    Bench bench(*driver);
    bench.write(bench.backed({2 * kMiB}), conformance::pattern(2 * kMiB, 1));
    PENSTOCK_CHECK_OK(driver->synchronize(bench.stream()));
    PENSTOCK_CHECK_CODE(driver->create_chunk(4 * kGiB, Place::kDevice).status(),
                        Code::kOutOfMemory);
    CHECK(cuda->current() == &other);
    CHECK(cuda->depth() == 1);
    CHECK(cuda->capture_mode() == 0);
  }
  CHECK(cuda->current() == &other);
  cuda->pop();
  Status elsewhere(Code::kInternal, "not called");
  std::thread([&] { elsewhere = driver->memory_info().status(); }).join();
  PENSTOCK_CHECK_OK(elsewhere);
}

TEST_CASE("CUDA: calls made while another thread captures leave its capture alone") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  const Stream capturing = bench.stream();
  const Stream other = bench.stream();
  const Event event = bench.event();
  PENSTOCK_REQUIRE_OK(cuda->gpu()->begin_capture(capturing));
  std::thread([&] {
    PENSTOCK_CHECK_OK(driver->record(event, other));
    PENSTOCK_CHECK_OK(driver->synchronize(event));
    PENSTOCK_CHECK_OK(driver->query(event));
    bench.page_locked(kMiB);
    bench.backed({2 * kMiB});
  }).join();
  CHECK(driver->capturing(capturing).value());
  CHECK_FALSE(driver->capturing(other).value());
  PENSTOCK_CHECK_OK(cuda->gpu()->end_capture(capturing).status());
}

TEST_CASE("CUDA: set_access tries again while the driver is not ready") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  const Addr address = bench.backed({2 * kMiB});
  cuda->not_ready = 5;
  PENSTOCK_CHECK_OK(driver->set_access(address, 2 * kMiB));
  CHECK(cuda->not_ready.load() == 0);
  cuda->not_ready = 1000000;
  const Status refused = driver->set_access(address, 2 * kMiB);
  cuda->not_ready = 0;
  PENSTOCK_CHECK_CODE(refused, Code::kDriver);  // kNotReady would not be taken for a failure
  CHECK(says(refused, "cuMemSetAccess of 2 MiB: CUDA_ERROR_NOT_READY"));
}

TEST_CASE("CUDA: sharing gives another device access to what is mapped and to what will be") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  const Addr before = bench.backed({2 * kMiB, 4 * kMiB});
  PENSTOCK_CHECK_CODE(driver->share_with(1), Code::kInvalidArgument);  // there is none
  cuda->devices = 2;
  cuda->reachable = 0;
  PENSTOCK_CHECK_CODE(driver->share_with(1), Code::kUnsupported);
  bench.write(bench.backed({2 * kMiB}), conformance::pattern(2 * kMiB, 1));
  CHECK(cuda->shared.load() == 0);
  cuda->reachable = 1;
  cuda->not_ready = 1000000;
  PENSTOCK_CHECK_CODE(driver->share_with(1), Code::kDriver);
  cuda->not_ready = 0;
  bench.write(bench.backed({2 * kMiB}), conformance::pattern(2 * kMiB, 3));  // for itself alone
  CHECK(cuda->shared.load() == 0);
  cuda->not_ready = 3;
  PENSTOCK_CHECK_OK(driver->share_with(1));
  CHECK(cuda->shared.load() == 10 * kMiB);
  PENSTOCK_CHECK_OK(driver->share_with(1));  // nothing new
  PENSTOCK_CHECK_OK(driver->share_with(0));  // with itself: it has
  CHECK(cuda->shared.load() == 10 * kMiB);
  bench.backed({16 * kMiB});
  CHECK(cuda->shared.load() == 26 * kMiB);
  bench.write(before, conformance::pattern(6 * kMiB, 2));
  cuda->devices = 1;
  cuda->shared = 0;
}

TEST_CASE("CUDA: what another device is refused is mapped anew to the same chunk, and shared") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  const Addr address = bench.backed({2 * kMiB, 4 * kMiB});
  bench.write(address, conformance::pattern(6 * kMiB, 7));
  cuda->devices = 2;
  cuda->stale = true;
  const Status shared = driver->share_with(1);
  cuda->stale = false;
  PENSTOCK_CHECK_OK(shared);
  CHECK(cuda->shared.load() == 6 * kMiB);
  CHECK(bench.read(address, 6 * kMiB) == conformance::pattern(6 * kMiB, 7));
  cuda->devices = 1;
  cuda->shared = 0;
}

TEST_CASE("CUDA: out of memory names the call, the size and what is left") {
  if (emulation() == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  bench.chunk(kGiB);
  const Status refused = driver->create_chunk(2 * kGiB, Place::kDevice).status();
  PENSTOCK_CHECK_CODE(refused, Code::kOutOfMemory);
  CHECK(says(refused, "cuMemCreate of 2 GiB: CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(says(refused, std::to_string(kGiB) + " of " + std::to_string(2 * kGiB) + " bytes free"));
}

TEST_CASE("CUDA: every advice is the one of the CUDA driver, about the place it names") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  Bench bench(*driver);
  const Addr address = bench.managed(2 * kMiB);
  const auto passes_as = [&](Advice advice, int code) {
    PENSTOCK_CHECK_OK(driver->managed_advise(address, 2 * kMiB, advice));
    CHECK(cuda->advice.load() == code);
    return cuda->advice_location.load();
  };
  passes_as(Advice::kReadMostly, 1);
  passes_as(Advice::kUnsetReadMostly, 2);
  CHECK(passes_as(Advice::kPreferDevice, 3) == 1);
  CHECK(passes_as(Advice::kPreferHost, 3) == 2);
  passes_as(Advice::kUnsetPreferred, 4);
}

// One of everything, none of it taken away.
void leave_everything(Driver& driver) {
  const Addr address = driver.reserve(4 * kMiB).value();
  const Chunk chunk = driver.create_chunk(2 * kMiB, Place::kDevice).value();
  const Chunk released = driver.create_chunk(2 * kMiB, Place::kHost).value();
  PENSTOCK_REQUIRE_OK(driver.map(address, 2 * kMiB, chunk));
  PENSTOCK_REQUIRE_OK(driver.map(address + 2 * kMiB, 2 * kMiB, released));
  PENSTOCK_REQUIRE_OK(driver.set_access(address, 4 * kMiB));
  PENSTOCK_REQUIRE_OK(driver.release_chunk(released));
  CHECK(driver.host_alloc(1000).ok());
  CHECK(driver.managed_alloc(1000).ok());
  const Stream stream = driver.create_stream().value();
  const Event event = driver.create_event(false).value();
  for (int round = 0; round < 20; ++round) {
    PENSTOCK_REQUIRE_OK(driver.fill(address, 1, 4 * kMiB, stream));
  }
  PENSTOCK_REQUIRE_OK(driver.record(event, stream));
}

TEST_CASE("CUDA: goes with everything in it, after the work in its streams") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  {
    const auto driver = open();
    leave_everything(*driver);
  }
  CHECK(cuda->gpu()->live() == LiveCounts{});
}

TEST_CASE("CUDA: large host memory is the process's own, registered") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  constexpr Bytes kSize = 40 * kMiB + 100;  // several writers, and no whole page at its end
  {
    const auto driver = open();
    auto* const host = static_cast<std::byte*>(driver->host_alloc(kSize).value());
    CHECK(cuda->registered == 1);
    CHECK(reinterpret_cast<Bytes>(host) % (2 * kMiB) == 0);
    CHECK(host[0] == std::byte{0});
    CHECK(host[kSize - 1] == std::byte{0});
    CHECK(driver->host_alloc(1000).ok());  // too little to be worth it
    CHECK(cuda->registered == 1);
    CHECK(driver->live().host_allocations == 2);
    PENSTOCK_CHECK_OK(driver->host_free(host));
    CHECK(cuda->registered == 0);
    PENSTOCK_CHECK_CODE(driver->host_free(host), Code::kInvalidArgument);
    CHECK(driver->host_alloc(kSize).ok());
  }
  CHECK(cuda->registered == 0);
  CHECK(cuda->gpu()->live() == LiveCounts{});
}

TEST_CASE("CUDA: host memory that cannot be registered is the driver's") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  const auto driver = open();
  const std::int64_t before = cuda->calls;
  PENSTOCK_CHECK_OK(driver->host_free(driver->host_alloc(8 * kMiB).value()));
  const std::int64_t calls = cuda->calls - before;
  std::int64_t by_the_driver = 0;
  for (std::int64_t nth = 1; nth <= calls; ++nth) {
    CAPTURE(nth);
    cuda->fail_at = cuda->calls + nth;
    const auto got = driver->host_alloc(8 * kMiB);
    cuda->fail_at = 0;
    by_the_driver += got.ok() && cuda->registered == 0;
    if (got.ok()) PENSTOCK_CHECK_OK(driver->host_free(got.value()));
    CHECK(cuda->registered == 0);
    CHECK(cuda->gpu()->live().host_allocations == 0);
  }
  CHECK(by_the_driver > 0);
  cuda->registers = false;
  const auto another = open();
  CHECK(another->host_alloc(8 * kMiB).ok());
  CHECK(cuda->registered == 0);
  cuda->registers = true;
}

TEST_CASE("CUDA: a forked child may destroy it without calling the driver") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  auto driver = open();
  Bench bench(*driver);
  const Addr address = bench.backed({2 * kMiB});
  const auto bytes = conformance::pattern(2 * kMiB, 2);
  bench.write(address, bytes);
  const Stream stream = bench.stream();
  const int contexts = cuda->contexts;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    driver.reset();
    _exit(cuda->contexts == contexts ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  PENSTOCK_CHECK_OK(driver->synchronize(stream));
  CHECK(bench.read(address, bytes.size()) == bytes);
}

// Last: what it leaves behind stays in the emulation, as it would in a driver that is going down.
TEST_CASE("CUDA: ending after the driver has shut down is quiet") {
  EmulatedCuda* cuda = emulation();
  if (cuda == nullptr) return;
  auto driver = open();
  leave_everything(*driver);
  cuda->shut_down = true;
  const Status refused = driver->memory_info().status();
  driver.reset();
  cuda->shut_down = false;
  --cuda->contexts;
  PENSTOCK_CHECK_CODE(refused, Code::kDriver);
  CHECK(cuda->depth() == 0);
}

}  // namespace
}  // namespace penstock::driver
