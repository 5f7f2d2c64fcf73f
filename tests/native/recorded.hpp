// SPDX-License-Identifier: Apache-2.0
// A trace of allocations, written out event by event.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/replay_program.hpp"

namespace penstock::engine::testing {

struct Event {
  std::uint8_t op;
  std::uint32_t id;
  std::uint64_t bytes = 0;
  std::uint64_t time_us = 0;
  std::uint32_t stream = 0;
};

class Recorded {
 public:
  explicit Recorded(const std::vector<Event>& events) {
    for (const Event& event : events) {
      op_.push_back(event.op);
      id_.push_back(event.id);
      bytes_.push_back(event.bytes);
      stream_.push_back(event.stream);
      time_us_.push_back(event.time_us);
    }
  }
  [[nodiscard]] Trace trace() const { return {op_, id_, bytes_, stream_, time_us_}; }

 private:
  std::vector<std::uint8_t> op_;
  std::vector<std::uint32_t> id_, stream_;
  std::vector<std::uint64_t> bytes_, time_us_;
};

}  // namespace penstock::engine::testing
