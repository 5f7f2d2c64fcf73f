// SPDX-License-Identifier: Apache-2.0
// The last events of an allocator, for PyTorch's memory history: a ring that forgets the oldest.
// The caller locks.
#pragma once

#include <cstdint>
#include <vector>

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
  void start(std::uint64_t capacity);
  [[nodiscard]] bool on() const { return capacity_ > 0; }
  void add(AllocationRecord record);  // sets the time; nothing if it is off
  [[nodiscard]] std::vector<AllocationRecord> events() const;  // the oldest first

 private:
  std::uint64_t capacity_ = 0;
  std::uint64_t next_ = 0;
  std::vector<AllocationRecord> ring_;
};

}  // namespace penstock::engine
