// SPDX-License-Identifier: Apache-2.0
// Device chunks of one size, and the exact ones behind pinned ranges, under one budget.  Chunks are
// kept until the budget shrinks: creating one costs 10-19 us on an H200.  Not thread-safe.
#pragma once

#include <algorithm>
#include <vector>

#include "driver/driver.hpp"

namespace penstock::engine {

class ChunkPool {
 public:
  ChunkPool(driver::Driver& driver, Bytes chunk_bytes, Bytes budget)
      : driver_(driver), chunk_bytes_(chunk_bytes), budget_(budget) {}
  ~ChunkPool() {
    for (driver::Chunk chunk : live_) (void)driver_.release_chunk(chunk);
  }
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  [[nodiscard]] Bytes chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] Bytes budget() const { return budget_; }
  void set_budget(Bytes budget) { budget_ = budget; }
  // Device memory held now, and the most ever held.
  [[nodiscard]] Bytes held() const { return held_; }
  [[nodiscard]] Bytes peak() const { return peak_; }

  // kOutOfMemory, with the numbers, beyond the budget.
  Result<driver::Chunk> take(Bytes bytes) {
    if (held_ + bytes > budget_) {
      return Status(Code::kOutOfMemory, "a chunk of ", bytes, " bytes beside ", held_,
                    " exceeds the budget of ", budget_);
    }
    room_for(live_, live_.size() + 1);
    PENSTOCK_ASSIGN(const driver::Chunk chunk, driver_.create_chunk(bytes, driver::Place::kDevice));
    live_.push_back(chunk);
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return chunk;
  }
  Status give_back(driver::Chunk chunk, Bytes bytes) {
    live_.erase(std::find(live_.begin(), live_.end(), chunk));
    held_ -= bytes;
    return driver_.release_chunk(chunk);
  }

 private:
  driver::Driver& driver_;
  Bytes chunk_bytes_;
  Bytes budget_;
  Bytes held_ = 0;
  Bytes peak_ = 0;
  std::vector<driver::Chunk> live_;
};

}  // namespace penstock::engine
