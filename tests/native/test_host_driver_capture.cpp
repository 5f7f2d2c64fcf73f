// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's captures, per-thread default streams and destroyed streams: as CUDA's.
#include <atomic>
#include <thread>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

using conformance::Bench;

std::unique_ptr<HostDriver> open(bool reuse_handles = false) {
  auto driver = open_host_driver({.capacity = 16 * kMiB,
                                  .granularity = 64 * kKiB,
                                  .seed = 1,
                                  .max_delay_us = 50,
                                  .reuse_handles = reuse_handles});
  REQUIRE(driver.ok());
  return std::move(driver).value();
}

TEST_CASE("capture: what is given to the stream runs when its graph is launched, each time") {
  const auto driver = open();
  Bench bench(*driver);
  const Stream stream = bench.stream();
  int ran = 0;
  PENSTOCK_REQUIRE_OK(driver->begin_capture(stream));
  CHECK(driver->capturing(stream).value());
  PENSTOCK_REQUIRE_OK(driver->launch(stream, [&ran] { ++ran; }));
  const Result<HostGraph> graph = driver->end_capture(stream);
  PENSTOCK_REQUIRE_OK(graph.status());
  CHECK_FALSE(driver->capturing(stream).value());
  PENSTOCK_REQUIRE_OK(driver->synchronize(stream));
  CHECK(ran == 0);
  for (int i = 0; i < 2; ++i) PENSTOCK_REQUIRE_OK(driver->launch_graph(stream, graph.value()));
  PENSTOCK_REQUIRE_OK(driver->synchronize(stream));
  CHECK(ran == 2);
}

TEST_CASE("capture: an event takes another stream into it, and its work into the graph") {
  const auto driver = open();
  Bench bench(*driver);
  const Stream first = bench.stream();
  const Stream second = bench.stream();
  const Event fork = bench.event();
  const Event join = bench.event();
  std::vector<int> order;
  PENSTOCK_REQUIRE_OK(driver->begin_capture(first));
  PENSTOCK_REQUIRE_OK(driver->launch(first, [&] { order.push_back(1); }));
  PENSTOCK_REQUIRE_OK(driver->record(fork, first));
  PENSTOCK_REQUIRE_OK(driver->wait(second, fork));
  CHECK(driver->capturing(second).value());
  PENSTOCK_REQUIRE_OK(driver->launch(second, [&] { order.push_back(2); }));
  PENSTOCK_REQUIRE_OK(driver->record(join, second));
  PENSTOCK_REQUIRE_OK(driver->wait(first, join));
  PENSTOCK_REQUIRE_OK(driver->launch(first, [&] { order.push_back(3); }));
  const Result<HostGraph> graph = driver->end_capture(first);
  PENSTOCK_REQUIRE_OK(graph.status());
  CHECK_FALSE(driver->capturing(second).value());
  PENSTOCK_REQUIRE_OK(driver->launch_graph(second, graph.value()));
  PENSTOCK_REQUIRE_OK(driver->synchronize(second));
  CHECK(order == std::vector{1, 2, 3});
}

TEST_CASE("capture: what waits for it or asks about it fails and ends it") {
  const auto driver = open();
  Bench bench(*driver);
  const Stream stream = bench.stream();
  const Event inside = bench.event();
  const Event outside = bench.event();
  PENSTOCK_REQUIRE_OK(driver->record(outside, bench.stream()));
  const auto breaks = [&](auto call) {
    PENSTOCK_REQUIRE_OK(driver->begin_capture(stream));
    PENSTOCK_REQUIRE_OK(driver->record(inside, stream));
    PENSTOCK_CHECK_CODE(call(), Code::kInvalidArgument);
    PENSTOCK_CHECK_CODE(driver->launch(stream, [] {}), Code::kDriver);
    PENSTOCK_CHECK_CODE(driver->end_capture(stream).status(), Code::kDriver);
    CHECK_FALSE(driver->capturing(stream).value());
  };
  breaks([&] { return driver->synchronize(stream); });
  breaks([&] { return driver->synchronize_device(); });
  breaks([&] { return driver->query(inside); });
  breaks([&] { return driver->synchronize(inside); });
  breaks([&] { return driver->wait(stream, outside); });
  PENSTOCK_CHECK_OK(driver->synchronize_device());
}

TEST_CASE("per-thread default stream: another one in each thread") {
  const auto driver = open();
  std::atomic<bool> go{false};
  bool seen = false;
  std::thread([&] {
    PENSTOCK_CHECK_OK(driver->launch(kPerThreadStream, [&] {
      while (!go) std::this_thread::yield();
      seen = true;
    }));
  }).join();
  // That of this thread does not wait for it, nor can this thread name it.
  PENSTOCK_CHECK_OK(driver->launch(kPerThreadStream, [] {}));
  PENSTOCK_CHECK_OK(driver->synchronize(kPerThreadStream));
  go = true;
  PENSTOCK_CHECK_OK(driver->synchronize_device());
  CHECK(seen);
  PENSTOCK_CHECK_CODE(driver->destroy_stream(kPerThreadStream), Code::kInvalidArgument);
}

TEST_CASE("destroyed streams: whoever names one is refused and counted, until it is made anew") {
  const auto driver = open(true);
  const Stream gone = driver->create_stream().value();
  const Event event = driver->create_event(false).value();
  PENSTOCK_REQUIRE_OK(driver->destroy_stream(gone));
  CHECK(driver->dead_uses() == 0);
  PENSTOCK_CHECK_CODE(driver->record(event, gone), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver->wait(gone, event), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver->capturing(gone).status(), Code::kInvalidArgument);
  CHECK(driver->dead_uses() == 3);
  CHECK(driver->create_stream().value() == gone);
  PENSTOCK_CHECK_OK(driver->record(event, gone));
  CHECK(driver->dead_uses() == 3);
}

}  // namespace
}  // namespace penstock::driver
