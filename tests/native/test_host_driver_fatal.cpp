// SPDX-License-Identifier: Apache-2.0
// What would be a fault on a GPU is a SIGSEGV here: each case runs in a child process of its own,
// beside a case that is right, so that a child which dies of something else is not taken for it.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

#ifdef __SANITIZE_THREAD__
// The children start threads, which the sanitizer forbids after a fork with threads about, such as
// those of another test's driver.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace penstock::driver {
namespace {

constexpr Bytes kSize = 2 * kMiB;

// A driver with a range of two chunks' length, the first half of it backed and accessible.
struct Scene {
  std::unique_ptr<HostDriver> driver;
  Addr range = 0;
  Chunk chunk{};
  Stream stream{};
};

bool good(const Status& status) { return status.ok(); }

bool set(Scene& scene) {
  auto driver = open_host_driver({.capacity = 16 * kMiB});
  if (!driver.ok()) return false;
  scene.driver = std::move(driver).value();
  const auto range = scene.driver->reserve(2 * kSize);
  const auto chunk = scene.driver->create_chunk(kSize, Place::kDevice);
  const auto stream = scene.driver->create_stream();
  if (!range.ok() || !chunk.ok() || !stream.ok()) return false;
  scene.range = range.value();
  scene.chunk = chunk.value();
  scene.stream = stream.value();
  return good(scene.driver->map(scene.range, kSize, scene.chunk)) &&
         good(scene.driver->set_access(scene.range, kSize));
}

enum class End { kDone, kSegmentationFault, kOther };

// How a child ends that sets the scene and acts on it; acting returns whether all calls were good.
End act(const std::function<bool(Scene&)>& action) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // neither the test runner's handler nor a sanitizer's
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(30);
    Scene scene;
    if (!set(scene)) _exit(2);
    _exit(action(scene) && good(scene.driver->synchronize(scene.stream)) ? 0 : 3);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) return End::kSegmentationFault;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return End::kDone;
  MESSAGE("the child ended with status " << status);
  return End::kOther;
}

void touch(Addr address) { *reinterpret_cast<volatile std::uint8_t*>(address) = 1; }

TEST_CASE("emulated GPU: touching what is mapped and accessible is fine") {
  CHECK(act([](Scene& scene) {
          touch(scene.range);
          touch(scene.range + kSize - 1);
          return good(scene.driver->fill(scene.range, 1, kSize, scene.stream));
        }) == End::kDone);
}

TEST_CASE("emulated GPU: touching a range where nothing is mapped is fatal") {
  CHECK(act([](Scene& scene) {
          touch(scene.range + kSize);
          return true;
        }) == End::kSegmentationFault);
  CHECK(act([](Scene& scene) {  // a copy that runs one byte over the end of what is mapped
          return good(scene.driver->fill(scene.range, 1, kSize + 1, scene.stream));
        }) == End::kSegmentationFault);
}

TEST_CASE("emulated GPU: a mapping without access is fatal to touch") {
  CHECK(act([](Scene& scene) {
          if (!good(scene.driver->map(scene.range + kSize, kSize, scene.chunk))) return false;
          return good(scene.driver->fill(scene.range + kSize, 1, 1, scene.stream));
        }) == End::kSegmentationFault);
}

TEST_CASE("emulated GPU: access goes with the mapping") {
  CHECK(act([](Scene& scene) {
          if (!good(scene.driver->unmap(scene.range, kSize))) return false;
          if (!good(scene.driver->map(scene.range, kSize, scene.chunk))) return false;
          touch(scene.range);
          return true;
        }) == End::kSegmentationFault);
}

TEST_CASE("emulated GPU: unmapping under work in flight is fatal to the work") {
  const auto late_fill = [](Scene& scene) {
    const Status waits = scene.driver->launch(
        scene.stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    return good(waits) && good(scene.driver->fill(scene.range, 1, kSize, scene.stream));
  };
  CHECK(act([&](Scene& scene) {
          return late_fill(scene) && good(scene.driver->unmap(scene.range, kSize));
        }) == End::kSegmentationFault);
  CHECK(act([&](Scene& scene) {  // in the right order
          return late_fill(scene) && good(scene.driver->synchronize(scene.stream)) &&
                 good(scene.driver->unmap(scene.range, kSize));
        }) == End::kDone);
}

TEST_CASE("emulated GPU: page-locked memory ends where it ends, and is gone when freed") {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  CHECK(act([&](Scene& scene) {
          auto got = scene.driver->host_alloc(page);
          touch(reinterpret_cast<Addr>(got.value()) + page);
          return true;
        }) == End::kSegmentationFault);
  CHECK(act([&](Scene& scene) {  // what a sanitizer maps meanwhile would take the end of it
          auto got = scene.driver->host_alloc(256 * page);
          if (!good(scene.driver->host_free(got.value()))) return false;
          touch(reinterpret_cast<Addr>(got.value()));
          return true;
        }) == End::kSegmentationFault);
}

}  // namespace
}  // namespace penstock::driver
