// SPDX-License-Identifier: Apache-2.0
// The stitching allocator on the emulated GPU: every byte of every block is checked in its stream,
// whose work is delayed at random, so that memory handed out too early shows.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "allocator_bench.hpp"
#include "doctest/doctest.h"

namespace penstock::testing {
namespace {

struct Tensor {
  Addr address = 0;
  Bytes bytes = 0;
  driver::Stream stream{};
  std::uint8_t pattern = 0;
};

// Programs that write a pattern into what they get, and read it before they give it back.
class Soak {
 public:
  Soak(Machine& machine, std::uint64_t seed) : machine_(machine), random_(seed) {}

  void step(Bytes largest) {
    if (live_.size() > 40 || (!live_.empty() && random_() % 9 < 4))
      return drop(random_() % live_.size());
    Tensor tensor;
    tensor.bytes = 1 + random_() % (Bytes{1} << (random_() % std::bit_width(largest)));
    tensor.stream = machine_.streams[random_() % machine_.streams.size()];
    tensor.pattern = static_cast<std::uint8_t>(random_());
    const Result<Addr> address = machine_.allocator->allocate(tensor.bytes, tensor.stream);
    if (!address.ok()) {
      INFO(address.status().message());
      REQUIRE(address.status().code() == Code::kOutOfMemory);
      ++out_of_memory_;
      if (!live_.empty()) drop(0);
      return;
    }
    tensor.address = address.value();
    REQUIRE(tensor.address % 512 == 0);
    PENSTOCK_REQUIRE_OK(
        machine_.device->fill(tensor.address, tensor.pattern, tensor.bytes, tensor.stream));
    live_.push_back(tensor);
  }

  void drop(std::size_t which) {
    const Tensor tensor = live_[which];
    check_in(tensor, tensor.stream);
    if (machine_.streams.size() > 1 && random_() % 3 == 0) use_elsewhere(tensor);
    PENSTOCK_REQUIRE_OK(machine_.allocator->free(tensor.address));
    live_[which] = live_.back();
    live_.pop_back();
  }

  void drop_all() {
    while (!live_.empty()) drop(live_.size() - 1);
    for (const driver::Stream stream : machine_.streams) {
      PENSTOCK_REQUIRE_OK(machine_.device->synchronize(stream));
    }
  }

  [[nodiscard]] std::int64_t wrong() const { return *wrong_; }
  [[nodiscard]] int out_of_memory() const { return out_of_memory_; }

 private:
  void check_in(const Tensor& tensor, driver::Stream stream) {
    PENSTOCK_REQUIRE_OK(machine_.device->launch(stream, [tensor, wrong = wrong_] {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(tensor.address);
      for (Bytes i = 0; i < tensor.bytes; ++i) {
        if (bytes[i] != tensor.pattern) ++*wrong;
      }
    }));
  }

  // Another stream reads it after its own, and is named.
  void use_elsewhere(const Tensor& tensor) {
    const driver::Stream other = machine_.streams[random_() % machine_.streams.size()];
    auto event = machine_.device->create_event(false);
    PENSTOCK_REQUIRE_OK(event.status());
    PENSTOCK_REQUIRE_OK(machine_.device->record(event.value(), tensor.stream));
    PENSTOCK_REQUIRE_OK(machine_.device->wait(other, event.value()));
    check_in(tensor, other);
    PENSTOCK_REQUIRE_OK(machine_.allocator->record_stream(tensor.address, other));
    PENSTOCK_REQUIRE_OK(machine_.device->destroy_event(event.value()));
  }

  Machine& machine_;
  std::mt19937_64 random_;
  std::vector<Tensor> live_;
  std::shared_ptr<std::atomic<std::int64_t>> wrong_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  int out_of_memory_ = 0;
};

TEST_CASE("allocator: no byte is wrong, with delays in several streams and memory running out") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    engine::AllocatorOptions options = small_options();
    options.budget = seed % 2 == 0 ? 24 * kGranule : 0;
    options.packing.stitch_when = static_cast<policy::packing::StitchWhen>(seed % 3);
    options.packing.max_ranges = seed % 4 == 0 ? 6 : 4096;
    Machine machine = open_machine({.capacity = 40 * kGranule, .seed = seed, .max_delay_us = 200},
                                   options, 1 + seed % 3);
    Soak soak(machine, seed);
    for (int i = 0; i < 700; ++i) {
      soak.step(8 * kGranule);
      if (i % 200 == 199) PENSTOCK_REQUIRE_OK(machine.allocator->empty_cache());
    }
    soak.drop_all();
    CHECK(soak.wrong() == 0);
    const engine::AllocatorStats stats = machine.allocator->stats();
    CHECK(stats.reserved_bytes.of[0].peak <= static_cast<std::int64_t>(stats.budget));
    CHECK(stats.allocated_bytes.of[0].current == 0);
    PENSTOCK_REQUIRE_OK(machine.allocator->empty_cache());
    CHECK(machine.allocator->stats().reserved_bytes.of[0].current == 0);
    CHECK(machine.allocator->stats().active_bytes.of[0].current == 0);
    CHECK(machine.device->live().chunks == 0);
    machine.close();
  }
}

TEST_CASE("allocator: threads share it") {
  Machine machine =
      open_machine({.capacity = 96 * kGranule, .seed = 4, .max_delay_us = 50}, small_options(), 3);
  std::vector<std::jthread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const driver::Stream stream = machine.streams[static_cast<std::size_t>(t)];
      std::vector<Addr> mine;
      for (int i = 0; i < 400; ++i) {
        if (mine.size() > 8 || (!mine.empty() && random() % 2 == 0)) {
          if (!machine.allocator->free(mine.back()).ok()) ++failures;
          mine.pop_back();
        } else {
          const Bytes bytes = 1 + random() % (3 * kGranule);
          const Result<Addr> address = machine.allocator->allocate(bytes, stream);
          if (!address.ok()) ++failures;
          if (address.ok()) mine.push_back(address.value());
        }
        if (i % 100 == 99 && !machine.allocator->empty_cache().ok()) ++failures;
      }
      for (const Addr address : mine) {
        if (!machine.allocator->free(address).ok()) ++failures;
      }
    });
  }
  threads.clear();
  CHECK(failures == 0);
  machine.close();
}

TEST_CASE("allocator: a loop of the same sizes makes no driver call in the end") {
  Machine machine = open_machine({.capacity = 400 * kGranule}, small_options(), 1);
  std::mt19937_64 random(11);
  std::array<Bytes, 50> sizes{};
  for (Bytes& size : sizes) size = 1 + random() % (6 * kGranule);
  const auto iteration = [&] {
    std::vector<Addr> live;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Result<Addr> address = machine.allocator->allocate(sizes[i], machine.streams[0]);
      PENSTOCK_REQUIRE_OK(address.status());
      live.push_back(address.value());
      if (i % 4 == 3) PENSTOCK_REQUIRE_OK(machine.allocator->free(std::exchange(live[i / 2], 0)));
    }
    for (const Addr address : live) {
      if (address != 0) PENSTOCK_REQUIRE_OK(machine.allocator->free(address));
    }
  };
  for (int i = 0; i < 8; ++i) iteration();
  const std::int64_t calls = machine.device->calls();
  for (int i = 0; i < 10; ++i) iteration();
  CHECK(machine.device->calls() == calls);
  machine.close();
}

TEST_CASE("allocator: a failure at any driver call is clean, and the next request works") {
  std::int64_t calls = 0;
  for (std::int64_t fail_at = 0; fail_at <= calls; ++fail_at) {
    CAPTURE(fail_at);
    driver::HostDriverOptions host{.capacity = 40 * kGranule, .granularity = kGranule};
    host.fail_at_call = fail_at;
    auto opened = driver::open_host_driver(host);
    PENSTOCK_REQUIRE_OK(opened.status());
    driver::HostDriver& device = *opened.value();
    {
      auto made = engine::Allocator::create(device, small_options());
      if (made.ok()) {
        engine::Allocator& allocator = *made.value();
        std::vector<Addr> live;
        int failed = 0;
        const auto get = [&](Bytes bytes) {
          const Result<Addr> address = allocator.allocate(bytes, driver::kDefaultStream);
          if (address.ok()) live.push_back(address.value());
          if (!address.ok()) ++failed;
        };
        for (int i = 0; i < 8; ++i) get(kGranule);
        for (std::size_t i = 0; i < live.size(); i += 2)
          PENSTOCK_REQUIRE_OK(allocator.free(live[i]));
        get(3 * kGranule);  // a stitch
        get(3 * kGranule);
        get(30 * kGranule);
        CHECK(failed <= 1);
        const engine::AllocatorStats stats = allocator.stats();
        const auto chunks = static_cast<Bytes>(stats.chunks.current);
        CHECK(device.live().chunks == static_cast<std::int64_t>(chunks));
        get(kGranule);
        CHECK(failed <= 1);
      }
    }
    const driver::LiveCounts live = device.live();
    CHECK(live.chunks == 0);
    CHECK(live.mappings == 0);
    CHECK(live.ranges == 0);
    CHECK(live.events == 0);
    if (fail_at == 0) calls = device.calls();
  }
  CHECK(calls > 20);
}

TEST_CASE("allocator: a block whose last use could not be recorded is not lost") {
  std::int64_t calls = 0;
  for (std::int64_t fail_at = 0; fail_at <= calls; ++fail_at) {
    CAPTURE(fail_at);
    driver::HostDriverOptions host{.capacity = 40 * kGranule};
    host.fail_at_call = fail_at;
    host.granularity = kGranule;
    auto opened = driver::open_host_driver(host);
    PENSTOCK_REQUIRE_OK(opened.status());
    driver::HostDriver& device = *opened.value();
    auto made = engine::Allocator::create(device, small_options());
    auto stream = device.create_stream();
    auto third = device.create_stream();
    if (!made.ok() || !stream.ok() || !third.ok()) continue;
    engine::Allocator& allocator = *made.value();
    const Result<Addr> address = allocator.allocate(kGranule, driver::kDefaultStream);
    if (!address.ok()) continue;
    PENSTOCK_REQUIRE_OK(allocator.record_stream(address.value(), stream.value()));
    PENSTOCK_REQUIRE_OK(allocator.record_stream(address.value(), third.value()));
    (void)allocator.free(address.value());  // an event may fail
    int failed = 0;
    for (int i = 0; i < 3; ++i) failed += allocator.empty_cache().ok() ? 0 : 1;
    CHECK(failed <= 1);
    CHECK(allocator.stats().active_bytes.of[0].current == 0);
    CHECK(allocator.stats().reserved_bytes.of[0].current == 0);
    if (fail_at == 0) calls = device.calls();
    made.value().reset();
    PENSTOCK_REQUIRE_OK(device.destroy_stream(stream.value()));
    PENSTOCK_REQUIRE_OK(device.destroy_stream(third.value()));
    CHECK(device.live().events == 0);
  }
  CHECK(calls > 6);
}

TEST_CASE("allocator: the history tells where every chunk went that was given back") {
  Machine machine = open_machine({.capacity = 200 * kGranule}, small_options(), 1);
  machine.allocator->record_history(1 << 16, nullptr);
  Soak soak(machine, 3);
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 120; ++i) soak.step(6 * kGranule);
    PENSTOCK_REQUIRE_OK(machine.allocator->empty_cache());
  }
  soak.drop_all();
  PENSTOCK_REQUIRE_OK(machine.allocator->empty_cache());
  std::map<Addr, Bytes> slots;  // mapped on the line, slot by slot
  std::map<Addr, Bytes> ranges;
  int given_back = 0;
  for (const engine::AllocationRecord& event : machine.allocator->history()) {
    const bool map = event.event == engine::AllocationEvent::kSegmentMap;
    if (event.event == engine::AllocationEvent::kStitch) {
      REQUIRE(ranges.emplace(event.address, event.bytes).second);
    } else if (event.event == engine::AllocationEvent::kUnstitch) {
      REQUIRE(ranges[event.address] == event.bytes);
      ranges.erase(event.address);
    } else if (map || event.event == engine::AllocationEvent::kSegmentUnmap) {
      if (!map) ++given_back;
      for (Addr at = event.address; at < event.address + event.bytes; at += kGranule) {
        REQUIRE((map ? slots.emplace(at, 1).second : slots.erase(at) == 1));
      }
    }
  }
  CHECK(given_back > 6);
  CHECK(slots.empty());
  CHECK(ranges.empty());
  CHECK(machine.allocator->stats().stitched_ranges.current == 0);
  CHECK(machine.allocator->stats().reserved_bytes.of[0].current == 0);
  machine.close();
}

TEST_CASE("allocator: out of memory names the numbers, and the allocator goes on") {
  engine::AllocatorOptions options = small_options();
  options.budget = 8 * kGranule;
  Machine machine = open_machine({.capacity = 64 * kGranule}, options, 1);
  const Result<Addr> first = machine.allocator->allocate(6 * kGranule, machine.streams[0]);
  PENSTOCK_REQUIRE_OK(first.status());
  const Result<Addr> second = machine.allocator->allocate(3 * kGranule, machine.streams[0]);
  REQUIRE(second.status().code() == Code::kOutOfMemory);
  CHECK(second.status().message().find("Tried to allocate 192 KiB") != std::string::npos);
  CHECK(second.status().message().find("budget of 512 KiB") != std::string::npos);
  CHECK(machine.allocator->allocate(2 * kGranule, machine.streams[0]).ok());
  PENSTOCK_REQUIRE_OK(machine.allocator->free(first.value()));
  CHECK(machine.allocator->allocate(6 * kGranule, machine.streams[0]).ok());
  CHECK(machine.allocator->free(12345).code() == Code::kInvalidArgument);
  CHECK(machine.allocator->stats().out_of_memory == 1);
  // Rounded up, these would be nothing.
  for (const Bytes bytes : {~Bytes{0}, ~Bytes{0} - 500}) {
    CHECK(machine.allocator->allocate(bytes, machine.streams[0]).status().code() ==
          Code::kOutOfMemory);
  }
  machine.close();
}

TEST_CASE("allocator: before it fails, free ends of chunks are joined to the last new ones") {
  engine::AllocatorOptions options = small_options();
  constexpr Bytes kChunk = 4 * kGranule;
  options.packing.smallest_chunk = kChunk;
  options.packing.grow_exactly = false;  // until nothing else is left
  options.budget = 4 * kChunk;
  Machine machine = open_machine({.capacity = 64 * kGranule}, options, 1);
  const auto get = [&](Bytes bytes) {
    return machine.allocator->allocate(bytes, machine.streams[0]);
  };
  const Result<Addr> first = get(kChunk / 2);
  const Result<Addr> second = get(kChunk / 2);
  const Result<Addr> third = get(kChunk);
  REQUIRE((first.ok() && second.ok() && third.ok()));
  PENSTOCK_REQUIRE_OK(machine.allocator->free(second.value()));
  // Half a chunk is free, in use at its beginning, and two may be added elsewhere.
  const Result<Addr> joined = get(2 * kChunk + kChunk / 2);
  PENSTOCK_REQUIRE_OK(joined.status());
  CHECK(machine.allocator->stats().stitches == 1);
  CHECK(machine.allocator->stats().reserved_bytes.of[0].current == 4 * kChunk);
  PENSTOCK_REQUIRE_OK(
      machine.device->fill(joined.value(), 7, 2 * kChunk + kChunk / 2, machine.streams[0]));
  PENSTOCK_REQUIRE_OK(machine.device->synchronize(machine.streams[0]));
  CHECK(get(1).status().code() == Code::kOutOfMemory);
  machine.close();
}

TEST_CASE("allocator: a private pool keeps to itself, and goes with its last block") {
  Machine machine = open_machine({.capacity = 64 * kGranule}, small_options(), 2);
  engine::Allocator& allocator = *machine.allocator;
  const driver::Stream captured = machine.streams[0];
  const Result<Addr> cached = allocator.allocate(4 * kGranule, captured);
  PENSTOCK_REQUIRE_OK(cached.status());
  PENSTOCK_REQUIRE_OK(allocator.free(cached.value()));
  const engine::PoolId id{7, 1};
  PENSTOCK_REQUIRE_OK(
      allocator.begin_pool(id, [&](driver::Stream stream) { return stream == captured; }));
  const Result<Addr> inside = allocator.allocate(2 * kGranule, captured);
  const Result<Addr> outside = allocator.allocate(2 * kGranule, machine.streams[1]);
  PENSTOCK_REQUIRE_OK(inside.status());
  PENSTOCK_REQUIRE_OK(outside.status());
  // Freed in the capture while another stream used it: kept until the capture is over.
  PENSTOCK_REQUIRE_OK(allocator.record_stream(outside.value(), captured));
  PENSTOCK_REQUIRE_OK(allocator.free(outside.value()));
  PENSTOCK_REQUIRE_OK(allocator.empty_cache());
  CHECK(allocator.free(outside.value()).code() == Code::kInvalidArgument);
  int private_pieces = 0;
  for (const engine::PieceInfo& piece : allocator.pieces()) {
    if (!(piece.pool == id)) continue;
    if (piece.state == engine::PieceState::kAllocated) ++private_pieces;
  }
  CHECK(private_pieces == 1);
  // What is free in the pool when the capture ends belongs to its graph until that is destroyed.
  const Result<Addr> temporary = allocator.allocate(3 * kGranule, captured);
  PENSTOCK_REQUIRE_OK(temporary.status());
  PENSTOCK_REQUIRE_OK(allocator.free(temporary.value()));
  PENSTOCK_REQUIRE_OK(allocator.end_pool(id));
  PENSTOCK_REQUIRE_OK(allocator.empty_cache());
  CHECK(allocator.stats().reserved_bytes.of[0].current == 5 * kGranule);
  PENSTOCK_REQUIRE_OK(allocator.release_pool(id));
  PENSTOCK_REQUIRE_OK(allocator.empty_cache());
  CHECK(allocator.stats().reserved_bytes.of[0].current == 2 * kGranule);
  PENSTOCK_REQUIRE_OK(allocator.free(inside.value()));
  PENSTOCK_REQUIRE_OK(allocator.empty_cache());
  CHECK(allocator.stats().reserved_bytes.of[0].current == 0);
  CHECK(allocator.release_pool(id).code() == Code::kInvalidArgument);
  machine.close();
}

TEST_CASE("allocator: pieces tile the memory that it holds") {
  Machine machine = open_machine({.capacity = 200 * kGranule}, small_options(), 1);
  Soak soak(machine, 9);
  for (int i = 0; i < 300; ++i) soak.step(6 * kGranule);
  const engine::AllocatorStats stats = machine.allocator->stats();
  Bytes all = 0;
  Bytes allocated = 0;
  Bytes requested = 0;
  Addr end = 0;
  for (const engine::PieceInfo& piece : machine.allocator->pieces()) {
    if (end != 0 && piece.address != end) CHECK(piece.address == piece.segment);
    CHECK(piece.address + piece.bytes <= piece.segment + piece.segment_bytes);
    end = piece.address + piece.bytes;
    all += piece.bytes;
    requested += piece.requested;
    if (piece.state == engine::PieceState::kAllocated) allocated += piece.bytes;
  }
  CHECK(all == static_cast<Bytes>(stats.reserved_bytes.of[0].current));
  CHECK(allocated == static_cast<Bytes>(stats.allocated_bytes.of[0].current));
  CHECK(requested == static_cast<Bytes>(stats.requested_bytes.of[0].current));
  soak.drop_all();
  CHECK(soak.wrong() == 0);
  machine.close();
}

TEST_CASE("allocator: the history keeps the last events, each with its context") {
  Machine machine = open_machine({.capacity = 64 * kGranule}, small_options(), 1);
  machine.allocator->record_history(5, [](engine::AllocationEvent) { return 42u; });
  for (int i = 0; i < 4; ++i) {
    const Result<Addr> address = machine.allocator->allocate(1000, machine.streams[0]);
    PENSTOCK_REQUIRE_OK(address.status());
    PENSTOCK_REQUIRE_OK(machine.allocator->free(address.value()));
  }
  const auto events = machine.allocator->history();
  REQUIRE(events.size() == 5);
  CHECK(events.back().event == engine::AllocationEvent::kFreeCompleted);
  CHECK(events[2].event == engine::AllocationEvent::kAlloc);
  CHECK(events[2].context == 42);
  CHECK(events[2].bytes == 1024);
  CHECK(events[2].requested == 1000);
  machine.allocator->record_history(3, nullptr);  // goes on with what fits
  REQUIRE(machine.allocator->history().size() == 3);
  CHECK(machine.allocator->history()[0].time_ns == events[2].time_ns);
  PENSTOCK_REQUIRE_OK(machine.allocator->allocate(1000, machine.streams[0]).status());
  REQUIRE(machine.allocator->history().size() == 3);
  CHECK(machine.allocator->history()[0].time_ns == events[3].time_ns);
  machine.allocator->record_history(0, nullptr);
  CHECK(machine.allocator->history().empty());
  machine.close();
}

}  // namespace
}  // namespace penstock::testing
