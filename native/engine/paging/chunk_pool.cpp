// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/chunk_pool.hpp"

#include <algorithm>
#include <string>

namespace penstock::engine {

ChunkPool::~ChunkPool() {
  for (driver::Chunk chunk : live_) (void)driver_.release_chunk(chunk);
}

Result<driver::Chunk> ChunkPool::take(Bytes bytes) {
  if (held_ + bytes > budget_) {
    return Status(Code::kOutOfMemory, "a chunk of " + std::to_string(bytes) + " bytes beside " +
                                          std::to_string(held_) + " exceeds the budget of " +
                                          std::to_string(budget_));
  }
  PENSTOCK_ASSIGN(const driver::Chunk chunk, driver_.create_chunk(bytes, driver::Place::kDevice));
  live_.push_back(chunk);
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  return chunk;
}

Status ChunkPool::give_back(driver::Chunk chunk, Bytes bytes) {
  live_.erase(std::find(live_.begin(), live_.end(), chunk));
  held_ -= bytes;
  return driver_.release_chunk(chunk);
}

}  // namespace penstock::engine
