// SPDX-License-Identifier: Apache-2.0
// What the random delays are for: work that no event orders really comes out of order, so that a
// test with a missing event fails, and work that events order never does.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

using conformance::Bench;

constexpr std::uint64_t kSeeds = 20;
constexpr std::uint32_t kDelay = 300;

std::unique_ptr<HostDriver> open(std::uint64_t seed) {
  auto driver = open_host_driver({.capacity = 64 * kMiB, .seed = seed, .max_delay_us = kDelay});
  PENSTOCK_REQUIRE_OK(driver.status());
  return std::move(driver).value();
}

// Which of two streams did each piece of work, when the pieces are given to them in turn.
std::vector<int> turns(HostDriver& driver, bool with_events) {
  Bench bench(driver);
  const Stream streams[] = {bench.stream(), bench.stream()};
  const Event event = bench.event();
  std::mutex mutex;
  std::vector<int> order;
  for (int piece = 0; piece < 16; ++piece) {
    const int who = piece % 2;
    if (with_events) PENSTOCK_REQUIRE_OK(driver.wait(streams[who], event));
    PENSTOCK_REQUIRE_OK(driver.launch(streams[who], [&, who] {
      const std::lock_guard lock(mutex);
      order.push_back(who);
    }));
    if (with_events) PENSTOCK_REQUIRE_OK(driver.record(event, streams[who]));
  }
  for (const Stream stream : streams) PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  const std::lock_guard lock(mutex);
  return order;
}

// Of a stream with this much work: 20 pieces at up to 2 ms each, 20 ms on average.
std::chrono::steady_clock::duration time_for_work(std::uint32_t max_delay_us) {
  auto driver = open_host_driver({.seed = 1, .max_delay_us = max_delay_us});
  PENSTOCK_REQUIRE_OK(driver.status());
  Bench bench(*driver.value());
  const Stream stream = bench.stream();
  const auto begin = std::chrono::steady_clock::now();
  for (int piece = 0; piece < 20; ++piece) {
    PENSTOCK_REQUIRE_OK(driver.value()->launch(stream, [] {}));
  }
  PENSTOCK_REQUIRE_OK(driver.value()->synchronize(stream));
  return std::chrono::steady_clock::now() - begin;
}

TEST_CASE("emulated GPU: work is delayed when asked for") {
  CHECK(time_for_work(2000) > std::chrono::milliseconds(8));
  auto shortest = time_for_work(0);
  for (int attempt = 0; attempt < 9; ++attempt) shortest = std::min(shortest, time_for_work(0));
  CHECK(shortest < std::chrono::milliseconds(8));  // of ten, on a machine that does other things
}

TEST_CASE("emulated GPU: streams overtake each other unless events order them") {
  std::vector<int> in_turn;
  for (int piece = 0; piece < 16; ++piece) in_turn.push_back(piece % 2);
  int out_of_turn = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto driver = open(seed);
    CHECK(turns(*driver, /*with_events=*/true) == in_turn);
    out_of_turn += turns(*driver, /*with_events=*/false) != in_turn ? 1 : 0;
  }
  CHECK(out_of_turn > 0);
}

// A pager in small: one slot, filled by the copy stream and read by the compute stream; a slot
// that has not been filled yet holds poison.  Returns how many reads saw anything but the truth.
int wrong_reads(HostDriver& driver, bool wait_for_copy, bool wait_for_use) {
  constexpr int kRounds = 12;
  constexpr std::uint8_t kPoison = 0xEE;
  Bench bench(driver);
  const Addr slot = bench.backed({2 * kMiB});
  const Stream copies = bench.stream();
  const Stream compute = bench.stream();
  const Event filled = bench.event();
  const Event used = bench.event();
  std::mutex mutex;  // the wrong order is what is tested, not a data race in the test
  std::vector<std::uint8_t> seen;
  auto* view = reinterpret_cast<std::uint8_t*>(slot);
  const auto put = [&](std::uint8_t value) {
    return [&mutex, view, value] {
      const std::lock_guard lock(mutex);
      *view = value;
    };
  };
  for (int round = 1; round <= kRounds; ++round) {
    if (wait_for_use) PENSTOCK_REQUIRE_OK(driver.wait(copies, used));
    PENSTOCK_REQUIRE_OK(driver.launch(copies, put(kPoison)));
    PENSTOCK_REQUIRE_OK(driver.launch(copies, put(static_cast<std::uint8_t>(round))));
    PENSTOCK_REQUIRE_OK(driver.record(filled, copies));
    if (wait_for_copy) PENSTOCK_REQUIRE_OK(driver.wait(compute, filled));
    PENSTOCK_REQUIRE_OK(driver.launch(compute, [&] {
      const std::lock_guard lock(mutex);
      seen.push_back(*view);
    }));
    PENSTOCK_REQUIRE_OK(driver.record(used, compute));
  }
  PENSTOCK_REQUIRE_OK(driver.synchronize(compute));
  PENSTOCK_REQUIRE_OK(driver.synchronize(copies));
  const std::lock_guard lock(mutex);
  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) wrong += seen[round - 1] != round ? 1 : 0;
  return wrong;
}

TEST_CASE("emulated GPU: a missing event shows, on either side of a copy") {
  int without_copy = 0;
  int without_use = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto driver = open(seed);
    CHECK(wrong_reads(*driver, /*wait_for_copy=*/true, /*wait_for_use=*/true) == 0);
    without_copy += wrong_reads(*driver, /*wait_for_copy=*/false, /*wait_for_use=*/true);
    without_use += wrong_reads(*driver, /*wait_for_copy=*/true, /*wait_for_use=*/false);
  }
  CHECK(without_copy > 0);
  CHECK(without_use > 0);
}

TEST_CASE("emulated GPU: the default stream is the calling thread") {
  const auto driver = open(1);
  Bench bench(*driver);
  const auto caller = std::this_thread::get_id();
  std::thread::id ran_on;
  PENSTOCK_REQUIRE_OK(driver->launch(kDefaultStream, [&] { ran_on = std::this_thread::get_id(); }));
  CHECK(ran_on == caller);

  const Stream stream = bench.stream();
  const Event event = bench.event();
  bool done = false;
  PENSTOCK_REQUIRE_OK(driver->launch(stream, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  }));
  PENSTOCK_REQUIRE_OK(driver->record(event, stream));
  PENSTOCK_REQUIRE_OK(driver->wait(kDefaultStream, event));  // blocks the caller
  CHECK(done);
}

TEST_CASE("emulated GPU: elapsed time is refused until both events are complete") {
  const auto driver = open(2);
  Bench bench(*driver);
  const Stream stream = bench.stream();
  const Event begin = bench.event(true);
  const Event end = bench.event(true);
  std::mutex gate;
  gate.lock();
  PENSTOCK_REQUIRE_OK(driver->record(begin, stream));
  PENSTOCK_REQUIRE_OK(driver->launch(stream, [&] {
    const std::lock_guard lock(gate);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }));
  PENSTOCK_REQUIRE_OK(driver->record(end, stream));
  PENSTOCK_CHECK_CODE(driver->query(end), Code::kNotReady);
  PENSTOCK_CHECK_CODE(driver->elapsed_ms(begin, end).status(), Code::kNotReady);
  gate.unlock();
  PENSTOCK_REQUIRE_OK(driver->synchronize(end));
  const auto elapsed = driver->elapsed_ms(begin, end);
  PENSTOCK_REQUIRE_OK(elapsed.status());
  CHECK(elapsed.value() >= 5.0f);
}

}  // namespace
}  // namespace penstock::driver
