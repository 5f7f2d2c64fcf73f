// SPDX-License-Identifier: Apache-2.0
// A small program to page: layers of words in one range, "kernels" that read (and may change) a
// layer on a stream of the emulated GPU, and a count of the words that were not what they should
// be.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver/emulated/driver.hpp"
#include "engine/paging/pager.hpp"

namespace penstock::testing {

inline constexpr Bytes kGranule = 64 * kKiB;

struct ProgramOptions {
  int layers = 12;
  Bytes layer_bytes = 3 * kGranule + 512;  // layers share pages at their borders
  Bytes budget = 20 * kGranule;
  bool writes = false;
  engine::Evicted evicted = engine::Evicted::kMapped;
  std::uint64_t seed = 0;
  std::uint32_t max_delay_us = 0;
  std::int64_t fail_at_call = 0;
  Bytes capacity = 64 * kMiB;
  std::int32_t most_mappings = 0;
};

class PagedProgram {
 public:
  explicit PagedProgram(const ProgramOptions& options) : options_(options) {
    driver::HostDriverOptions host;
    host.capacity = options.capacity;
    host.granularity = kGranule;
    host.seed = options.seed;
    host.max_delay_us = options.max_delay_us;
    host.fail_at_call = options.fail_at_call;
    host.most_mappings = options.most_mappings;
    auto opened = driver::open_host_driver(host);
    if (opened.ok()) device_ = std::move(opened).value();
  }
  ~PagedProgram() { close(); }

  [[nodiscard]] driver::HostDriver& device() { return *device_; }
  [[nodiscard]] engine::Pager& pager() { return *pager_; }
  [[nodiscard]] std::int64_t wrong() const { return wrong_; }

  Status open() {
    engine::PagerOptions options;
    options.budget = options_.budget;
    options.chunk_bytes = kGranule;
    options.look_ahead_bytes = 2 * kGranule;
    options.max_copy_bytes = 2 * kGranule;
    options.evicted = options_.evicted;
    options.profile_every = 3;
    PENSTOCK_ASSIGN(pager_, engine::Pager::create(*device_, options));
    const Bytes bytes = options_.layer_bytes * static_cast<Bytes>(options_.layers);
    PENSTOCK_ASSIGN(const std::int32_t index,
                    pager_->create_range(bytes, engine::RangeKind::kPaged));
    range_ = pager_->range(index);
    for (int layer = 0; layer < options_.layers; ++layer) {
      auto* words = reinterpret_cast<std::uint32_t*>(range_.host + options_.layer_bytes *
                                                                       static_cast<Bytes>(layer));
      for (Bytes i = 0; i < this->words(); ++i) words[i] = expected(layer, i);
      PENSTOCK_ASSIGN(const engine::UseId use, pager_->define_use({piece(layer)}));
      uses_.push_back(use);
    }
    PENSTOCK_ASSIGN(stream_, device_->create_stream());
    has_stream_ = true;
    rounds_.assign(static_cast<std::size_t>(options_.layers), 0);
    return {};
  }

  // One layer's kernel: check every word, and add 1 to it if the program writes.
  Status layer(int number) {
    const engine::UseId use = uses_[static_cast<std::size_t>(number)];
    PENSTOCK_TRY(pager_->begin(use, stream_));
    PENSTOCK_TRY(kernel(number));
    return pager_->end(use, stream_);
  }

  Status kernel(int number) {
    auto* words = reinterpret_cast<std::uint32_t*>(range_.address + options_.layer_bytes *
                                                                        static_cast<Bytes>(number));
    std::uint32_t& round = rounds_[static_cast<std::size_t>(number)];
    const std::uint32_t added = round;
    const bool writes = options_.writes;
    if (writes) ++round;
    return device_->launch(stream_, [this, words, number, added, writes] {
      for (Bytes i = 0; i < this->words(); ++i) {
        if (words[i] != expected(number, i) + added) ++wrong_;
        if (writes) words[i] += 1;
      }
    });
  }

  Status sweep() {
    PENSTOCK_TRY(pager_->iteration());
    for (int number = 0; number < options_.layers; ++number) PENSTOCK_TRY(layer(number));
    return {};
  }

  Status sweep(const std::vector<int>& order) {
    PENSTOCK_TRY(pager_->iteration());
    for (const int number : order) PENSTOCK_TRY(layer(number));
    return {};
  }

  // Words on the host that are not what the kernels so far should have left.
  Result<std::int64_t> wrong_on_host() {
    PENSTOCK_TRY(pager_->flush(range_.address, range_.bytes));
    std::int64_t wrong = 0;
    for (int number = 0; number < options_.layers; ++number) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(
          range_.host + options_.layer_bytes * static_cast<Bytes>(number));
      const std::uint32_t added = rounds_[static_cast<std::size_t>(number)];
      for (Bytes i = 0; i < this->words(); ++i) wrong += words[i] != expected(number, i) + added;
    }
    return wrong;
  }

  void close() {
    pager_.reset();
    if (has_stream_) (void)device_->destroy_stream(stream_);
    has_stream_ = false;
  }

  [[nodiscard]] engine::Piece piece(int layer) const {
    return {range_.address + options_.layer_bytes * static_cast<Bytes>(layer), options_.layer_bytes,
            options_.writes};
  }
  [[nodiscard]] const engine::Range& range() const { return range_; }
  [[nodiscard]] engine::UseId use(int layer) const {
    return uses_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] driver::Stream stream() const { return stream_; }

 private:
  [[nodiscard]] Bytes words() const { return options_.layer_bytes / sizeof(std::uint32_t); }
  static std::uint32_t expected(int layer, Bytes word) {
    return static_cast<std::uint32_t>(layer) * 2654435761U + static_cast<std::uint32_t>(word) * 97U;
  }

  ProgramOptions options_;
  std::unique_ptr<driver::HostDriver> device_;
  std::unique_ptr<engine::Pager> pager_;
  engine::Range range_;
  std::vector<engine::UseId> uses_;
  std::vector<std::uint32_t> rounds_;
  driver::Stream stream_{};
  bool has_stream_ = false;
  std::atomic<std::int64_t> wrong_{0};
};

}  // namespace penstock::testing
