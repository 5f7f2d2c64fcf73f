// SPDX-License-Identifier: Apache-2.0
// Streams as objects: handles that come again, default streams of threads, captures, and what is
// kept of streams that have gone.
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "engine/order/stream_clock.hpp"
#include "engine/order/streams.hpp"
#include "lab/machines/modelled_driver.hpp"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

using driver::kPerThreadStream;
using engine::StreamId;

constexpr Bytes kG = kProgramGranule;

template <class Function>
void in_thread(Function function) {
  std::thread(function).join();
}

void slow(Bench& bench, driver::Stream stream) {
  PENSTOCK_REQUIRE_OK(bench.device().launch(
      stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }));
}

TEST_CASE("streams: an id never comes again, though handles do") {
  const auto gpu = driver::open_host_driver({.granularity = kG, .reuse_handles = true}).value();
  engine::Streams streams(*gpu);
  std::set<StreamId> seen;
  for (int i = 0; i < 5; ++i) {
    const driver::Stream stream = gpu->create_stream().value();
    const StreamId id = streams.id(stream);
    CHECK(seen.insert(id).second);
    CHECK(streams.id(stream) == id);
    CHECK(streams.reachable(id));
    CHECK(streams.gone(stream) == id);
    CHECK_FALSE(streams.reachable(id));
    PENSTOCK_REQUIRE_OK(gpu->destroy_stream(stream));
  }
  const StreamId own = streams.id(kPerThreadStream);
  in_thread([&] {
    CHECK_FALSE(streams.reachable(own));
    CHECK(streams.id(kPerThreadStream) != own);
  });
  CHECK(streams.id(kPerThreadStream) == own);
  CHECK(streams.size() == 2);
  CHECK(gpu->dead_uses() == 0);
}

TEST_CASE("streams: the device is not waited for while one captures") {
  const auto gpu = driver::open_host_driver({.granularity = kG}).value();
  engine::Streams streams(*gpu);
  const driver::Stream stream = gpu->create_stream().value();
  const StreamId id = streams.id(stream);
  PENSTOCK_REQUIRE_OK(gpu->begin_capture(stream));
  CHECK(streams.capturing(id));
  CHECK_FALSE(streams.wait_for_device().value());
  PENSTOCK_CHECK_OK(gpu->end_capture(stream).status());
  CHECK(streams.wait_for_device().value());
  PENSTOCK_REQUIRE_OK(gpu->destroy_stream(stream));
}

TEST_CASE("stream clock: a process may have any number of streams, one after another") {
  const auto books = driver::ModelledDriver::open({}).value();
  engine::StreamClock clock(*books);
  const std::uint16_t first = clock.tag(driver::Stream{1000}).value();
  for (std::uint64_t i = 0; i < 70000; ++i) {
    const driver::Stream stream{2000 + i};
    const Result<std::uint16_t> tag = clock.tag(stream);
    REQUIRE(tag.ok());
    REQUIRE(tag.value() != 0);  // anybody's
    REQUIRE(tag.value() != first);
    const std::uint32_t epoch = clock.freed(tag.value(), kMiB, false);
    PENSTOCK_REQUIRE_OK(clock.stream_gone(stream));
    REQUIRE(clock.completed(tag.value()).value() >= epoch);
  }
  CHECK(clock.last_tag() < 10);
}

TEST_CASE("allocator: streams that were destroyed are not named again") {
  const auto gpu =
      driver::open_host_driver({.capacity = 16 * kMiB, .granularity = kG, .max_delay_us = 100})
          .value();
  auto allocator =
      engine::Allocator::create(*gpu, {.packing = {.smallest_chunk = kG, .largest_chunk = kG}})
          .value();
  for (int i = 0; i < 20; ++i) {
    const driver::Stream stream = gpu->create_stream().value();
    const driver::Stream other = gpu->create_stream().value();
    const Addr block = allocator->allocate(4 * kG, stream).value();
    const Addr later = allocator->allocate(kG, stream).value();
    PENSTOCK_REQUIRE_OK(allocator->record_stream(block, other));
    for (const driver::Stream gone : {stream, other}) {
      PENSTOCK_REQUIRE_OK(allocator->stream_gone(gone));
      PENSTOCK_REQUIRE_OK(gpu->destroy_stream(gone));
    }
    PENSTOCK_REQUIRE_OK(allocator->free(block));
    PENSTOCK_REQUIRE_OK(allocator->free(later));
    PENSTOCK_REQUIRE_OK(allocator->empty_cache());
    CHECK(allocator->stats().reserved_bytes.of[0].current == 0);
  }
  allocator.reset();
  CHECK(gpu->dead_uses() == 0);
  CHECK(gpu->live().events == 0);
}

TEST_CASE(
    "allocator: an event that says nothing any more holds up its block alone, and not for ever") {
  const auto gpu = driver::open_host_driver({.capacity = 16 * kMiB, .granularity = kG}).value();
  auto allocator =
      engine::Allocator::create(*gpu, {.packing = {.smallest_chunk = kG, .largest_chunk = kG}})
          .value();
  const driver::Stream own = gpu->create_stream().value();
  const driver::Stream user = gpu->create_stream().value();
  const Addr block = allocator->allocate(kG, own).value();
  PENSTOCK_REQUIRE_OK(allocator->record_stream(block, user));
  PENSTOCK_REQUIRE_OK(allocator->free(block));
  for (std::uint64_t id = 1; id < 9; ++id) (void)gpu->destroy_event(driver::Event{id});
  for (int i = 0; i < 3; ++i) {
    const Result<Addr> other = allocator->allocate(kG, own);
    PENSTOCK_REQUIRE_OK(other.status());
    CHECK(other.value() != block);
    PENSTOCK_REQUIRE_OK(allocator->free(other.value()));
  }
  PENSTOCK_REQUIRE_OK(allocator->empty_cache());
  CHECK(allocator->stats().reserved_bytes.of[0].current == 0);
  allocator.reset();
  for (const driver::Stream stream : {own, user}) PENSTOCK_REQUIRE_OK(gpu->destroy_stream(stream));
}

TEST_CASE("program: what another thread gave its own default stream is waited for") {
  Bench bench({.streams = 1, .evicted = Evicted::kMapped});
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < 40; ++i) tensors.push_back(bench.make(kG, bench.stream(0), i));
  PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  for (int round = 0; round < 3; ++round) {
    in_thread([&] {
      slow(bench, kPerThreadStream);
      bench.work(kPerThreadStream, {&tensors[0], &tensors[1]}, {}, 0);
    });
    // This thread's default stream has nothing to do: an event in it says nothing of the other.
    for (std::size_t i = 2; i < tensors.size(); ++i) {
      bench.work(kPerThreadStream, {&tensors[i]}, {}, 0);
    }
  }
  PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a stream that captures is given no mark, and its capture goes on") {
  Bench bench({.streams = 2, .evicted = Evicted::kMapped});
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < 40; ++i) tensors.push_back(bench.make(kG, bench.stream(0), i));
  slow(bench, bench.stream(1));
  bench.work(bench.stream(1), {&tensors[0], &tensors[1]}, {}, 0);
  PENSTOCK_REQUIRE_OK(bench.device().begin_capture(bench.stream(1)));
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 2; i < tensors.size(); ++i) {
      bench.work(bench.stream(0), {&tensors[i]}, {}, 0);
    }
  }
  const auto graph = bench.device().end_capture(bench.stream(1));
  PENSTOCK_CHECK_OK(graph.status());
  for (const Tensor& tensor : tensors) bench.work(bench.stream(1), {&tensor}, {}, 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: nothing is kept of streams that have gone") {
  Bench bench({.streams = 1, .evicted = Evicted::kMapped});
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < 40; ++i) tensors.push_back(bench.make(kG, bench.stream(0), i));
  std::int64_t events = 0;
  for (std::size_t i = 0; i < 600; ++i) {
    const driver::Stream stream = bench.device().create_stream().value();
    for (std::size_t k = 0; k < 3; ++k) {
      bench.work(stream, {&tensors[(7 * i + k) % tensors.size()]}, {}, 0);
    }
    PENSTOCK_REQUIRE_OK(bench.program().stream_gone(stream));
    PENSTOCK_REQUIRE_OK(bench.device().destroy_stream(stream));
    if (i == 300) events = bench.device().live().events;
  }
  CHECK(bench.device().live().events <= events + 4);
  CHECK(bench.device().dead_uses() == 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
