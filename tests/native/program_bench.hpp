// SPDX-License-Identifier: Apache-2.0
// A program whose work is announced piece by piece, on the emulated GPU: every word that a kernel
// reads is checked, streams are delayed at random, and memory is a fraction of what lives.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "process/program.hpp"

namespace penstock::testing {

using engine::Evicted;

inline constexpr Bytes kProgramGranule = 64 * kKiB;

struct Tensor {
  Addr address = 0;
  Bytes bytes = 0;
  driver::Stream stream{};
  std::uint64_t value = 0;  // that each of its words holds after the work given so far
};

struct BenchOptions {
  Bytes budget = 20 * kProgramGranule;
  Bytes page_bytes = kProgramGranule;
  int streams = 1;
  engine::Evicted evicted = engine::Evicted::kUnmapped;
  std::uint64_t seed = 0;
  std::uint32_t max_delay_us = 0;
  Bytes host_bytes = 0;
  // What the program takes for the device, over the emulated one.
  std::function<std::unique_ptr<driver::Driver>(driver::HostDriver&)> over = nullptr;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options) {
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = kProgramGranule};
    host.seed = options.seed;
    host.max_delay_us = options.max_delay_us;
    device_ = std::move(driver::open_host_driver(host)).value();
    if (options.over) over_ = options.over(*device_);
    driver::Driver& seen = over_ ? *over_ : static_cast<driver::Driver&>(*device_);
    auto made = engine::Program::create(seen, {.budget = options.budget,
                                               .page_bytes = options.page_bytes,
                                               .host_bytes = options.host_bytes,
                                               .evicted = options.evicted,
                                               .start_paging = [this] { ++started_; },
                                               .widened = {}});
    PENSTOCK_REQUIRE_OK(made.status());
    program_ = std::move(made).value();
    for (int i = 0; i < options.streams; ++i) {
      streams_.push_back(std::move(device_->create_stream()).value());
    }
  }
  ~Bench() { close(); }

  void close() {
    if (!device_) return;
    for (const driver::Stream stream : streams_) PENSTOCK_REQUIRE_OK(device_->synchronize(stream));
    program_.reset();
    over_.reset();
    for (const driver::Stream stream : streams_)
      PENSTOCK_REQUIRE_OK(device_->destroy_stream(stream));
    CHECK(device_->live() == driver::LiveCounts{});
    device_.reset();
  }

  driver::HostDriver& device() { return *device_; }
  engine::Program& program() { return *program_; }
  driver::Stream stream(std::size_t i) { return streams_[i % streams_.size()]; }
  std::uint64_t kernel = 1;  // which one work() launches
  [[nodiscard]] int started() const { return started_; }
  [[nodiscard]] std::int64_t wrong() const { return *wrong_; }

  Tensor make(Bytes bytes, driver::Stream stream, std::uint64_t value) {
    auto got = program_->allocator().allocate(bytes, stream);
    PENSTOCK_REQUIRE_OK(got.status());
    Tensor tensor{got.value(), bytes / 8 * 8, stream, value};
    work(stream, {}, {&tensor}, value);
    return tensor;
  }

  // A kernel that reads some tensors and fills others with `value`.
  void work(driver::Stream stream, const std::vector<const Tensor*>& reads,
            const std::vector<Tensor*>& writes, std::uint64_t value) {
    const bool announced = program_->pager().paging();
    if (announced) {
      std::vector<engine::TouchedAddress> touched;
      // Somewhere inside, as kernels' parameters may be.
      for (const Tensor* tensor : reads) touched.push_back({tensor->address + 4, 0, true});
      for (const Tensor* tensor : writes) touched.push_back({tensor->address, 0, true});
      touched.push_back({12345, 0, true});  // a number that is no address
      PENSTOCK_REQUIRE_OK(program_->announce(stream, touched, false, kernel));
    }
    std::vector<Tensor> in;
    std::vector<Tensor> out;
    for (const Tensor* tensor : reads) in.push_back(*tensor);
    for (Tensor* tensor : writes) {
      tensor->value = value;
      out.push_back(*tensor);
    }
    PENSTOCK_REQUIRE_OK(device_->launch(stream, [in, out, value, wrong = wrong_] {
      for (const Tensor& tensor : in) {
        const auto* words = reinterpret_cast<const std::uint64_t*>(tensor.address);
        for (Bytes i = 0; i < tensor.bytes / 8; ++i) {
          if (words[i] != tensor.value) ++*wrong;
        }
      }
      for (const Tensor& tensor : out) {
        auto* words = reinterpret_cast<std::uint64_t*>(tensor.address);
        for (Bytes i = 0; i < tensor.bytes / 8; ++i) words[i] = value;
      }
    }));
    if (announced) program_->given(stream);
  }

  // A copy of addresses from the host.
  void bring(driver::Stream stream, Addr at, const std::vector<Addr>& addresses,
             bool gaps = false) {
    std::vector<engine::HeldAddress> held;
    for (std::size_t i = 0; i < addresses.size(); ++i) held.push_back({at + 8 * i, addresses[i]});
    const engine::TouchedAddress to{at, 8 * addresses.size(), true, gaps};
    PENSTOCK_REQUIRE_OK(
        program_->announce(stream, std::span(&to, 1), false, 0, engine::WorkKind::kCopy, held));
    PENSTOCK_REQUIRE_OK(device_->launch(stream, [at, addresses] {
      std::memcpy(reinterpret_cast<void*>(at), addresses.data(), 8 * addresses.size());
    }));
    program_->given(stream);
  }
  // One of other bytes of the device's.
  void copy(driver::Stream stream, Addr to, Addr from, Bytes bytes) {
    const engine::TouchedAddress both[] = {{from, bytes, false}, {to, bytes, true}};
    PENSTOCK_REQUIRE_OK(program_->announce(stream, both, false, 0, engine::WorkKind::kCopy));
    PENSTOCK_REQUIRE_OK(device_->launch(stream, [to, from, bytes] {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    }));
    program_->given(stream);
  }

  void drop(const Tensor& tensor) {
    PENSTOCK_REQUIRE_OK(program_->allocator().free(tensor.address));
  }

  // `after` on another stream than `before`.
  void order(driver::Stream before, driver::Stream after) {
    if (before == after) return;
    const driver::Event event = std::move(device_->create_event(false)).value();
    PENSTOCK_REQUIRE_OK(device_->record(event, before));
    PENSTOCK_REQUIRE_OK(device_->wait(after, event));
    PENSTOCK_REQUIRE_OK(device_->destroy_event(event));
  }

 private:
  std::unique_ptr<driver::HostDriver> device_;
  std::unique_ptr<driver::Driver> over_;
  std::unique_ptr<engine::Program> program_;
  std::vector<driver::Stream> streams_;
  int started_ = 0;
  std::shared_ptr<std::atomic<std::int64_t>> wrong_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

// A network of layers whose weights stay and whose activations come and go.
struct Network {
  std::vector<Tensor> weights;

  Network(Bench& bench, int layers, Bytes bytes) {
    for (int i = 0; i < layers; ++i) {
      weights.push_back(bench.make(bytes, bench.stream(0), 1000 + static_cast<std::uint64_t>(i)));
    }
  }

  void forward(Bench& bench, Bytes activation) {
    Tensor hidden = bench.make(activation, bench.stream(0), 1);
    for (const Tensor& weight : weights) {
      Tensor next = bench.make(activation, bench.stream(0), 2);
      bench.work(bench.stream(0), {&hidden, &weight}, {&next}, 3);
      for (int i = 0; i < 6; ++i) bench.work(bench.stream(0), {&next}, {&next}, 4);
      bench.drop(hidden);
      hidden = next;
    }
    bench.drop(hidden);
  }
};

}  // namespace penstock::testing
