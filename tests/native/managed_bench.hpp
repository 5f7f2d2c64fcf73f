// SPDX-License-Identifier: Apache-2.0
// What the tests of managed sets share: a set on an emulated GPU whose "kernels" check, while they
// run, that their group is on the device whole, that its bytes are right, and that managed memory
// as a whole keeps to the budget; and a driver that passes everything on but holds prefetches back.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"
#include "engine/managed/managed_set.hpp"

namespace penstock::engine::managed_test {

using driver::HostDriver;
using driver::HostDriverOptions;
using driver::Stream;

inline constexpr Bytes kGrain = 4 * kKiB;

inline std::unique_ptr<HostDriver> open(HostDriverOptions options = {}) {
  options.granularity = kGrain;
  auto opened = driver::open_host_driver(options);
  PENSTOCK_REQUIRE_OK(opened.status());
  return std::move(opened).value();
}

// A gate that work in a stream waits at.
class Gate {
 public:
  explicit Gate(bool opened = true) : open_(opened) {}
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_;
};

inline std::uint8_t content(GroupId id, Bytes offset) {
  return static_cast<std::uint8_t>(37 * (id + 1) + offset / kGrain * 11);
}

// What kernels found wrong.
struct Findings {
  std::atomic<int> absent{0};
  std::atomic<int> wrong{0};
  std::atomic<int> over_budget{0};
  std::atomic<int> kernels{0};
};

class SetBench {
 public:
  SetBench(HostDriver& host, std::vector<GroupSpec> groups, ManagedSetOptions options)
      : host_(host), groups_(std::move(groups)), budget_(options.budget) {
    auto made = ManagedSet::create(host, options, groups_);
    PENSTOCK_REQUIRE_OK(made.status());
    set = std::move(made).value();
    for (GroupId id = 0; id < count(); ++id) fill(*set, id);
    compute = new_stream();
  }
  ~SetBench() {
    set.reset();
    for (const Stream stream : streams_) (void)host_.destroy_stream(stream);
  }

  [[nodiscard]] GroupId count() const { return static_cast<GroupId>(groups_.size()); }
  Stream new_stream() {
    auto made = host_.create_stream();
    PENSTOCK_REQUIRE_OK(made.status());
    streams_.push_back(made.value());
    return made.value();
  }
  void set_budget(Bytes budget) { budget_ = budget; }

  static void fill(const ManagedSet& set, GroupId id) {
    const auto span = set.group(id);
    PENSTOCK_REQUIRE_OK(span.status());
    auto* bytes = reinterpret_cast<std::uint8_t*>(span.value().address);
    for (Bytes at = 0; at < span.value().bytes; at += kGrain) bytes[at] = content(id, at);
  }

  // The stand-in for a layer's kernels.
  Status launch(GroupId id, Stream stream) {
    const Span span = set->group(id).value();
    return host_.launch(stream, [this, id, span] {
      ++findings.kernels;
      if (host_.managed_resident(span.address, span.bytes) != span.bytes) ++findings.absent;
      if (host_.managed_counters().resident > budget_) ++findings.over_budget;
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(span.address);
      for (Bytes at = 0; at < span.bytes; at += kGrain) {
        if (bytes[at] != content(id, at)) ++findings.wrong;
      }
    });
  }
  Status use(GroupId id, Stream stream) {
    PENSTOCK_TRY(set->begin(id, stream));
    const Status launched = launch(id, stream);
    const Status ended = set->end(id, stream);
    return launched.ok() ? ended : launched;
  }
  Status pass(const std::vector<GroupId>& order) {
    PENSTOCK_TRY(set->iteration());
    for (const GroupId id : order) PENSTOCK_TRY(use(id, compute));
    return {};
  }
  [[nodiscard]] std::vector<GroupId> in_order() const {
    std::vector<GroupId> order(groups_.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  void check_findings() {
    PENSTOCK_CHECK_OK(host_.synchronize(compute));
    CHECK(findings.kernels > 0);
    CHECK(findings.absent == 0);
    CHECK(findings.wrong == 0);
    CHECK(findings.over_budget == 0);
  }

  Findings findings;  // before the set: its kernels run until the set has gone
  std::unique_ptr<ManagedSet> set;
  Stream compute{};

 private:
  HostDriver& host_;
  std::vector<GroupSpec> groups_;
  std::atomic<Bytes> budget_;
  std::vector<Stream> streams_;
};

// Passes everything on; prefetches to the device wait at a gate, and what waits is counted.
class HeldBack final : public driver::Driver {
 public:
  HeldBack(HostDriver& host, Gate& gate) : host_(host), gate_(gate) {}
  Bytes in_flight() const { return in_flight_; }
  Bytes most_in_flight() const { return most_; }

  const driver::DeviceInfo& info() const override { return host_.info(); }
  driver::LiveCounts live() const override { return host_.live(); }
  Result<driver::MemoryInfo> memory_info() override { return host_.memory_info(); }
  Result<Addr> reserve(Bytes n) override { return host_.reserve(n); }
  Status unreserve(Addr a, Bytes n) override { return host_.unreserve(a, n); }
  Result<driver::Chunk> create_chunk(Bytes n, driver::Place p) override {
    return host_.create_chunk(n, p);
  }
  Status release_chunk(driver::Chunk c) override { return host_.release_chunk(c); }
  Status map(Addr a, Bytes n, driver::Chunk c) override { return host_.map(a, n, c); }
  Status unmap(Addr a, Bytes n) override { return host_.unmap(a, n); }
  Status set_access(Addr a, Bytes n) override { return host_.set_access(a, n); }
  Status synchronize_device() override { return host_.synchronize_device(); }
  Status share_with(int ordinal) override { return host_.share_with(ordinal); }
  Result<void*> host_alloc(Bytes n) override { return host_.host_alloc(n); }
  Status host_free(void* p) override { return host_.host_free(p); }
  Result<Addr> managed_alloc(Bytes n) override { return host_.managed_alloc(n); }
  Status managed_free(Addr a) override { return host_.managed_free(a); }
  Status managed_advise(Addr a, Bytes n, driver::Advice advice) override {
    return host_.managed_advise(a, n, advice);
  }
  Status managed_prefetch(Addr a, Bytes n, driver::Place to, Stream stream) override {
    if (to == driver::Place::kHost) return host_.managed_prefetch(a, n, to, stream);
    in_flight_ += n;
    most_ = std::max<Bytes>(most_, in_flight_);
    PENSTOCK_TRY(host_.launch(stream, [this] { gate_.pass(); }));
    PENSTOCK_TRY(host_.managed_prefetch(a, n, to, stream));
    return host_.launch(stream, [this, n] { in_flight_ -= n; });
  }
  Result<Stream> create_stream() override { return host_.create_stream(); }
  Status destroy_stream(Stream s) override { return host_.destroy_stream(s); }
  Status synchronize(Stream s) override { return host_.synchronize(s); }
  Result<driver::Event> create_event(bool timing) override { return host_.create_event(timing); }
  Status destroy_event(driver::Event e) override { return host_.destroy_event(e); }
  Status record(driver::Event e, Stream s) override { return host_.record(e, s); }
  Status wait(Stream s, driver::Event e) override { return host_.wait(s, e); }
  Status query(driver::Event e) override { return host_.query(e); }
  Status synchronize(driver::Event e) override { return host_.synchronize(e); }
  Result<float> elapsed_ms(driver::Event a, driver::Event b) override {
    return host_.elapsed_ms(a, b);
  }
  Status copy_in(Addr to, const void* from, Bytes n, Stream s) override {
    return host_.copy_in(to, from, n, s);
  }
  Status copy_out_changed(void* to, Addr from, Bytes n, driver::Fingerprint* print, bool still,
                          Stream s) override {
    return host_.copy_out_changed(to, from, n, print, still, s);
  }
  Status copy_out(void* to, Addr from, Bytes n, Stream s) override {
    return host_.copy_out(to, from, n, s);
  }
  Status copy_within(Addr to, Addr from, Bytes n, Stream s) override {
    return host_.copy_within(to, from, n, s);
  }
  Status fill(Addr to, std::uint8_t v, Bytes n, Stream s) override {
    return host_.fill(to, v, n, s);
  }

 private:
  HostDriver& host_;
  Gate& gate_;
  std::atomic<Bytes> in_flight_{0};
  std::atomic<Bytes> most_{0};
};

inline ManagedSetOptions options(Bytes budget, std::int32_t look_ahead = 2) {
  ManagedSetOptions made;
  made.budget = budget;
  made.look_ahead = look_ahead;
  made.mover.streams = 2;
  return made;
}

}  // namespace penstock::engine::managed_test
