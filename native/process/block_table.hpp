// SPDX-License-Identifier: Apache-2.0
// The blocks of a program, by any address within them.  Work names the same addresses again and
// again (a layer's weights, every iteration), so the last lookups are kept, which spares them the
// walk down the tree.  The caller locks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/interval_map.hpp"
#include "base/status.hpp"

namespace penstock::engine {

// Block has `address`, `bytes`, and an `id` that is never used again and never 0.
template <class Block>
class BlockTable {
 public:
  void insert(const Block& block) {
    if (spare_.empty()) {
      room_for(spare_, storage_.size() + 1);  // for all of them: erase() needs no memory
      spare_.push_back(&storage_.emplace_back());
    }
    Block* const place = spare_.back();
    if (!by_address_.insert(block.address, block.address + block.bytes, place)) return;
    spare_.pop_back();
    *place = block;
  }

  // The block around an address, or null.
  Block* find(Addr address) {
    Recent& recent = recent_[hash(address)];
    if (recent.block != nullptr && recent.address == address && recent.block->id == recent.id) {
      return recent.block;
    }
    Block* const* const found = by_address_.find(address);
    if (found == nullptr) return nullptr;
    recent = {address, *found, (*found)->id};
    return *found;
  }

  // The block that begins there goes.
  void erase(Addr address) {
    Block* const* const found = by_address_.find(address);
    if (found == nullptr || (*found)->address != address) return;
    (*found)->id = 0;
    spare_.push_back(*found);
    by_address_.erase(address);
  }

  template <class Visit>
  void each(const Visit& visit) const {
    by_address_.each([&visit](const Block* block) { visit(*block); });
  }

 private:
  static constexpr int kBits = 12;
  struct Recent {
    Addr address = 0;
    Block* block = nullptr;
    std::uint64_t id = 0;
  };
  static std::size_t hash(Addr address) {
    return static_cast<std::size_t>(address * UINT64_C(0x9E3779B97F4A7C15) >> (64 - kBits));
  }

  IntervalMap<Block*> by_address_;
  std::deque<Block> storage_;
  std::vector<Block*> spare_;
  std::array<Recent, std::size_t{1} << kBits> recent_{};
};

}  // namespace penstock::engine
