// SPDX-License-Identifier: Apache-2.0
// The mapper alone: what a move does to addresses and data, and that one which fails is undone,
// whichever driver call it was.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "driver/forwarding.hpp"
#include "engine/paging/mapper.hpp"
#include "engine/paging/pager.hpp"

namespace penstock::testing {
namespace {

using engine::Mapper;
using engine::Move;
using engine::Timeline;

constexpr Bytes kGranule = 64 * kKiB;

// Chunks with addresses of their own, pages with host memory; page i holds 10 + i, as long as it
// has not been written.
struct Machine {
  explicit Machine(std::int64_t fail_at = 0) {
    driver::HostDriverOptions options{.capacity = 4 * kMiB, .granularity = kGranule};
    options.fail_at_call = fail_at;
    device = std::move(driver::open_host_driver(options)).value();
  }
  // The set-up is no part of what is made to fail: false.
  bool open() {
    auto in_stream = device->create_stream();
    auto out_stream = device->create_stream();
    auto work_stream = device->create_stream();
    if (!in_stream.ok() || !out_stream.ok() || !work_stream.ok()) return false;
    in = std::make_unique<Timeline>(*device, in_stream.value());
    out = std::make_unique<Timeline>(*device, out_stream.value());
    work = std::make_unique<Timeline>(*device, work_stream.value());
    copies = std::make_unique<engine::PageCopies>(*device);
    for (int i = 0; i < 2; ++i) {
      auto chunk = device->create_chunk(kGranule, driver::Place::kDevice);
      auto address = device->reserve(kGranule);
      if (!chunk.ok() || !address.ok()) return false;
      chunks.push_back(chunk.value());
      own.push_back(address.value());
      if (!map(own.back(), i)) return false;
      std::memset(reinterpret_cast<void*>(own.back()), 10 + i, kGranule);
    }
    auto range = device->reserve(4 * kGranule);
    if (!range.ok()) return false;
    pages = range.value();
    for (int i = 0; i < 4; ++i) {
      hosts.emplace_back(kGranule, static_cast<std::byte>(i < 2 ? 0 : 10 + i));
    }
    if (!map(pages, 0) || !map(pages + kGranule, 1)) return false;
    mapper = std::make_unique<Mapper>(*device, kGranule, *copies, *in, *out);
    return true;
  }
  bool map(Addr address, int chunk) {
    return device->map(address, kGranule, chunks[static_cast<std::size_t>(chunk)]).ok() &&
           device->set_access(address, kGranule).ok();
  }
  [[nodiscard]] Addr page(int i) const { return pages + static_cast<Bytes>(i) * kGranule; }
  [[nodiscard]] int at(int i) const {
    return *reinterpret_cast<const volatile unsigned char*>(page(i));
  }
  // Pages 0 and 1, which are written back, make room for 2 and 3.
  void fill(Move& move, bool written = true) {
    for (std::size_t i = 0; i < 2; ++i) {
      Move::Out victim;
      victim.chunk = chunks[i];
      victim.own = own[i];
      victim.address = page(static_cast<int>(i));
      victim.mapped = true;
      victim.copy = written ? Move::Copy::kPlain : Move::Copy::kNone;
      victim.host = hosts[i].data();
      victim.bytes = kGranule;
      move.out.push_back(victim);
      move.in.push_back({.chunk = chunks[i],
                         .own = own[i],
                         .address = page(static_cast<int>(i) + 2),
                         .host = hosts[i + 2].data(),
                         .bytes = kGranule,
                         .parts = {}});
    }
  }

  std::unique_ptr<driver::HostDriver> device;
  std::unique_ptr<Timeline> in, out, work;
  std::vector<driver::Chunk> chunks;
  std::vector<Addr> own;
  Addr pages = 0;
  std::vector<std::vector<std::byte>> hosts;
  std::unique_ptr<engine::PageCopies> copies;
  std::unique_ptr<Mapper> mapper;  // last
};

TEST_CASE("mapper: victims leave with what was written, and the others are there") {
  Machine machine;
  REQUIRE(machine.open());
  Move move;
  machine.fill(move);
  PENSTOCK_REQUIRE_OK(machine.mapper->submit(move));
  machine.mapper->wait(move);
  PENSTOCK_REQUIRE_OK(move.status);
  CHECK(move.left);
  CHECK(machine.at(2) == 12);
  CHECK(machine.at(3) == 13);
  CHECK(machine.hosts[0][5] == std::byte{10});
  CHECK(machine.hosts[1][5] == std::byte{11});
  CHECK(machine.device->live().mappings == 4);  // two chunks' own, two pages'
}

TEST_CASE("mapper: nothing happens before the victims' last uses; what is demanded does not wait") {
  Machine machine;
  REQUIRE(machine.open());
  std::atomic<bool> go{false};
  PENSTOCK_REQUIRE_OK(machine.device->launch(machine.work->stream(), [&go] {
    while (!go) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }));
  const auto tick = machine.work->record();
  PENSTOCK_REQUIRE_OK(tick.status());
  Move both;
  machine.fill(both);
  Move ahead;  // page 0 for 2, once the work is over
  ahead.prefetch = true;
  ahead.out = {both.out[0]};
  ahead.in = {both.in[0]};
  ahead.busy.push_back({machine.work.get(), tick.value()});
  Move now;
  now.out = {both.out[1]};
  now.in = {both.in[1]};
  PENSTOCK_REQUIRE_OK(machine.mapper->submit(ahead));
  PENSTOCK_REQUIRE_OK(machine.mapper->submit(now));
  machine.mapper->wait(now);
  PENSTOCK_REQUIRE_OK(now.status);
  CHECK(machine.at(3) == 13);
  CHECK_FALSE(machine.mapper->over(ahead));
  CHECK(machine.at(0) == 10);  // still there for the work
  go = true;
  machine.mapper->wait(ahead);
  PENSTOCK_REQUIRE_OK(ahead.status);
  CHECK(machine.at(2) == 12);
}

TEST_CASE("mapper: a page that is waited for is mapped before it arrives, once all work is over") {
  Machine machine;
  REQUIRE(machine.open());
  std::atomic<bool> worked{false};
  std::atomic<bool> copied{false};
  const auto hold = [&](driver::Stream stream, const std::atomic<bool>& until) {
    PENSTOCK_REQUIRE_OK(machine.device->launch(stream, [&until] {
      while (!until) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }));
  };
  hold(machine.work->stream(), worked);
  const auto tick = machine.work->record();
  PENSTOCK_REQUIRE_OK(tick.status());
  hold(machine.in->stream(), copied);
  Move move;
  machine.fill(move);
  PENSTOCK_REQUIRE_OK(machine.mapper->submit(move));
  const engine::Mark all{machine.work.get(), tick.value()};
  std::thread waits([&] { machine.mapper->wait(move, std::span(&all, 1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(machine.mapper->over(move));
  worked = true;
  waits.join();
  PENSTOCK_REQUIRE_OK(move.status);
  CHECK(move.early);
  CHECK(machine.device->live().mappings == 4);
  CHECK_FALSE(move.arrival.reached().value());
  copied = true;
  PENSTOCK_REQUIRE_OK(move.arrival.synchronize());
  CHECK(machine.at(2) == 12);
  CHECK(machine.at(3) == 13);
}

TEST_CASE("mapper: victims whose ranges lie next to each other by chance leave each by itself") {
  Machine machine;
  REQUIRE(machine.open());
  std::vector<Addr> ranges;  // of one page each
  const auto next_to = [&](Addr range) {
    return std::find(ranges.begin(), ranges.end(), range + kGranule) != ranges.end();
  };
  do {
    const auto range = machine.device->reserve(kGranule);
    PENSTOCK_REQUIRE_OK(range.status());
    ranges.push_back(range.value());
    REQUIRE(ranges.size() < 100);
  } while (!next_to(ranges.back()));
  Move move;
  machine.fill(move, false);
  for (std::size_t i = 0; i < 2; ++i) {
    PENSTOCK_REQUIRE_OK(machine.device->unmap(machine.page(static_cast<int>(i)), kGranule));
    move.out[i].address = ranges.back() + i * kGranule;
    move.out[i].range = static_cast<std::int32_t>(i);
    REQUIRE(machine.map(move.out[i].address, static_cast<int>(i)));
  }
  PENSTOCK_REQUIRE_OK(machine.mapper->submit(move));
  machine.mapper->wait(move);
  PENSTOCK_REQUIRE_OK(move.status);
  CHECK(machine.at(2) == 12);
  CHECK(machine.at(3) == 13);
}

TEST_CASE("mapper: a move that fails is undone, at whichever call it does") {
  std::int64_t first = 0;
  std::int64_t last = 0;
  {
    Machine machine;
    REQUIRE(machine.open());
    first = machine.device->calls() + 1;
    Move move;
    machine.fill(move);
    PENSTOCK_REQUIRE_OK(machine.mapper->submit(move));
    machine.mapper->wait(move);
    last = machine.device->calls();
  }
  REQUIRE(last - first > 8);
  int back = 0;
  int gone = 0;
  for (std::int64_t call = first; call <= last; ++call) {
    CAPTURE(call - first);
    Machine machine(call);
    REQUIRE(machine.open());
    Move move;
    machine.fill(move);
    PENSTOCK_REQUIRE_OK(machine.mapper->submit(move));
    machine.mapper->wait(move);
    CHECK_FALSE(move.status.ok());
    CHECK(machine.device->live().mappings == (move.left ? 2 : 4));
    for (int i = 0; i < 2; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(move.out[at].mapped == !move.left);
      if (move.left) {
        CHECK(machine.hosts[at][9] == static_cast<std::byte>(10 + i));
      } else {
        CHECK(machine.at(i) == 10 + i);
      }
    }
    (move.left ? gone : back) += 1;
    // And nothing is in the way of the next.
    Move again;
    machine.fill(again);
    for (Move::Out& victim : again.out) victim.mapped = !move.left;
    if (move.left) {
      for (Move::Out& victim : again.out) victim.copy = Move::Copy::kNone;
    }
    PENSTOCK_REQUIRE_OK(machine.mapper->submit(again));
    machine.mapper->wait(again);
    PENSTOCK_REQUIRE_OK(again.status);
    CHECK(machine.at(2) == 12);
    CHECK(machine.at(3) == 13);
  }
  CHECK(back > 2);
  CHECK(gone > 2);
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("mapper: a forked child joins nobody, and is refused in words") {
  Machine machine;
  REQUIRE(machine.open());
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Move move;
    const bool refused = machine.mapper->submit(move).code() == Code::kInvalidArgument;
    machine.mapper.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

// How often its own thread has had the device change what addresses lead to.
class Counting : public driver::ForwardingDriver {
 public:
  explicit Counting(driver::Driver& device) : ForwardingDriver(device) {}
  Status set_access(Addr address, Bytes size) override {
    calls += std::this_thread::get_id() == own;
    return ForwardingDriver::set_access(address, size);
  }
  Status unmap(Addr address, Bytes size) override {
    calls += std::this_thread::get_id() == own;
    return ForwardingDriver::unmap(address, size);
  }
  const std::thread::id own = std::this_thread::get_id();
  std::atomic<int> calls = 0;
};

TEST_CASE("mapper: a budget that grows or shrinks costs its caller few calls for many chunks") {
  constexpr Bytes kPages = 150;
  auto device = std::move(driver::open_host_driver({.granularity = kGranule})).value();
  Counting driver(*device);
  auto pager = std::move(engine::Pager::create(driver, {.budget = 10 * kGranule,
                                                        .chunk_bytes = kGranule,
                                                        .evicted = engine::Evicted::kUnmapped}))
                   .value();
  const auto index = pager->create_range(kPages * kGranule, engine::RangeKind::kPaged);
  PENSTOCK_REQUIRE_OK(index.status());
  const Addr first = pager->range(index.value()).address;
  std::vector<engine::UseId> uses;
  for (Bytes page = 0; page < kPages; ++page) {
    const auto use = pager->define_use({{first + page * kGranule, kGranule, false}});
    PENSTOCK_REQUIRE_OK(use.status());
    uses.push_back(use.value());
  }
  const driver::Stream stream = std::move(device->create_stream()).value();
  const auto sweep = [&] {
    PENSTOCK_REQUIRE_OK(pager->iteration());
    for (const engine::UseId use : uses) {
      PENSTOCK_REQUIRE_OK(pager->begin(use, stream));
      PENSTOCK_REQUIRE_OK(pager->end(use, stream));
    }
  };
  const auto calls_of_resize = [&](Bytes pages) {
    const int before = driver.calls;
    PENSTOCK_REQUIRE_OK(pager->resize(pages * kGranule));
    sweep();
    CHECK(pager->stats().device_bytes == pages * kGranule);
    return driver.calls - before;
  };
  for (int round = 0; round < 3; ++round) sweep();
  for (int round = 0; round < 3; ++round) {
    CHECK(calls_of_resize(130) < 20);
    CHECK(calls_of_resize(10) < 40);
  }
  pager.reset();
  PENSTOCK_REQUIRE_OK(device->destroy_stream(stream));
  CHECK(device->live() == driver::LiveCounts{});
}

}  // namespace
}  // namespace penstock::testing
