// SPDX-License-Identifier: Apache-2.0
// What pieces of work cost the threads that give them while a program is paged, waits for pages
// aside: counts by eighths of an octave, so that a percentile is at most an eighth too high.
// Thread rule: any thread, without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

#include "engine/paging/mapper.hpp"

namespace penstock::engine {

class LaunchCosts {
 public:
  void add(std::int64_t ns) {
    count_[bucket(static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 1)))].fetch_add(
        1, std::memory_order_relaxed);
  }
  void add(const LaunchCosts& other) {
    for (std::size_t i = 0; i < kBuckets; ++i) {
      count_[i].fetch_add(other.count_[i].load(std::memory_order_relaxed),
                          std::memory_order_relaxed);
    }
  }
  // What this share of the pieces took at the most, in us; 0 where there were none.
  [[nodiscard]] double us(double share) const {
    std::uint64_t all = 0;
    for (const auto& count : count_) all += count.load(std::memory_order_relaxed);
    double left = share * static_cast<double>(all);
    for (std::size_t i = 0; all > 0 && i < kBuckets; ++i) {
      left -= static_cast<double>(count_[i].load(std::memory_order_relaxed));
      if (left <= 0) return static_cast<double>(end_of(i)) / 1e3;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kParts = 8;     // of an octave
  static constexpr std::size_t kOctaves = 40;  // up to a quarter of an hour
  static constexpr std::size_t kBuckets = kParts * kOctaves;

  static std::size_t bucket(std::uint64_t ns) {
    const auto octave = static_cast<std::size_t>(std::bit_width(ns)) - 1;
    const std::size_t part = ns * kParts >> octave & (kParts - 1);
    return std::min(octave * kParts + part, kBuckets - 1);
  }
  static std::uint64_t end_of(std::size_t bucket) {
    return ((kParts + bucket % kParts + 1) << bucket / kParts) / kParts;
  }

  std::array<std::atomic<std::uint64_t>, kBuckets> count_{};
};

// One piece of work, from here to the end of the scope; null: nobody asks.
class LaunchTimed {
 public:
  explicit LaunchTimed(LaunchCosts* costs) : costs_(costs) {
    if (costs_ == nullptr) return;
    waited_ = Mapper::waited();
    began_ = Clock::now();
  }
  ~LaunchTimed() {
    if (costs_ == nullptr) return;
    const std::chrono::nanoseconds took = Clock::now() - began_;
    costs_->add((took - (Mapper::waited() - waited_)).count());
  }
  LaunchTimed(const LaunchTimed&) = delete;
  LaunchTimed& operator=(const LaunchTimed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  LaunchCosts* costs_;
  Clock::time_point began_;
  std::chrono::nanoseconds waited_{};
};

}  // namespace penstock::engine
