// SPDX-License-Identifier: Apache-2.0
// The last events of an allocator, for PyTorch's memory history: a ring that forgets the oldest.
// The caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::engine {

enum class AllocationEvent : std::int32_t {
  kAlloc = 0,
  kFreeRequested = 1,
  kFreeCompleted = 2,
  kSegmentMap = 3,    // chunks mapped where they lie in order
  kSegmentUnmap = 4,  // chunks given back
  kStitch = 5,
  kUnstitch = 6,
  kOutOfMemory = 7,  // bytes: the request; address: the device's free bytes
};

struct AllocationRecord {
  std::int64_t time_ns = 0;  // CLOCK_REALTIME
  Addr address = 0;
  Bytes bytes = 0;
  Bytes requested = 0;
  std::uint64_t stream = 0;
  std::uint64_t pool_high = 0;
  std::uint64_t pool_low = 0;
  std::uint64_t context = 0;  // what the program wants to remember of it
  AllocationEvent event = AllocationEvent::kAlloc;
};

class AllocationHistory {
 public:
  // Keeps up to `capacity` events from here on, the last ones of those before among them.
  void start(std::uint64_t capacity) {
    std::vector<AllocationRecord> kept = events();
    if (kept.size() > capacity)
      kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(capacity));
    capacity_ = capacity;
    next_ = kept.size();
    ring_ = std::move(kept);
    ring_.shrink_to_fit();
  }
  [[nodiscard]] bool on() const { return capacity_ > 0; }
  // sets the time; nothing if it is off
  void add(AllocationRecord record) {
    if (!on()) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    record.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    if (ring_.size() < capacity_) {
      // What is told of late is not worth a failure.
      if (!guarded([&] { return ring_.push_back(record), Status{}; }).ok()) return;
    } else {
      ring_[next_ % capacity_] = record;
    }
    ++next_;
  }
  // The oldest first.
  [[nodiscard]] std::vector<AllocationRecord> events() const {
    std::vector<AllocationRecord> events;
    events.reserve(ring_.size());
    const std::uint64_t oldest = next_ - ring_.size();
    for (std::uint64_t i = oldest; i < next_; ++i) events.push_back(ring_[i % capacity_]);
    return events;
  }

 private:
  std::uint64_t capacity_ = 0;
  std::uint64_t next_ = 0;
  std::vector<AllocationRecord> ring_;
};

}  // namespace penstock::engine
