// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation/allocation_history.hpp"

#include <chrono>
#include <utility>

#include "base/status.hpp"

namespace penstock::engine {

void AllocationHistory::start(std::uint64_t capacity) {
  std::vector<AllocationRecord> kept = events();
  if (kept.size() > capacity)
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(capacity));
  capacity_ = capacity;
  next_ = kept.size();
  ring_ = std::move(kept);
  ring_.shrink_to_fit();
}

void AllocationHistory::add(AllocationRecord record) {
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

std::vector<AllocationRecord> AllocationHistory::events() const {
  std::vector<AllocationRecord> events;
  events.reserve(ring_.size());
  const std::uint64_t oldest = next_ - ring_.size();
  for (std::uint64_t i = oldest; i < next_; ++i) events.push_back(ring_[i % capacity_]);
  return events;
}

}  // namespace penstock::engine
