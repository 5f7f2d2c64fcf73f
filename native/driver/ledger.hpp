// SPDX-License-Identifier: Apache-2.0
// What a driver has reserved, created and mapped, and the rules of driver.hpp about it.  Both
// drivers ask the ledger before they touch the machine and tell it afterwards, so that a mistake
// gets the same answer on the emulated GPU as under every version of libcuda.
// Thread rule: none of its own; the owner's lock guards every call.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/text.hpp"

namespace penstock::driver {

class Ledger {
 public:
  struct ChunkEntry {
    std::uint64_t token = 0;  // what the machine calls it: a file offset, a CUDA handle
    Bytes size = 0;
    Place place = Place::kDevice;
    bool held = true;  // not released yet
    int mappings = 0;
  };

  explicit Ledger(Bytes granularity) : granularity_(granularity) {}

  // May it be done?  `call` begins the message.
  Status check_size(const char* call, Bytes size) const {
    if (size != 0 && size % granularity_ == 0) return {};
    return invalid(call, ": size ", size, " is not a positive multiple of ",
                   size_text(granularity_));
  }
  // A whole range without a mapping.
  Status check_range(Addr address, Bytes size) const {
    const auto range = ranges_.find(address);
    if (range == ranges_.end() || range->second != size) {
      return invalid("unreserve: ", span_text(address, size), " is not a whole reserved range");
    }
    const auto mapping = first_overlap(address, size);
    if (mapping == mappings_.end()) return {};
    return invalid("unreserve: ", span_text(address, size), " still holds a mapping of ",
                   span_text(mapping->first, mapping->second.size), "; unmap it first");
  }
  // Held.
  Result<ChunkEntry> check_chunk(const char* call, Chunk chunk) const {
    const auto id = static_cast<std::uint64_t>(chunk);
    const auto found = chunks_.find(id);
    if (found != chunks_.end() && found->second.held) return found->second;
    return invalid(call, ": no chunk ", id, ", or released already");
  }
  Result<ChunkEntry> check_map(Addr address, Bytes size, Chunk chunk) const {
    PENSTOCK_TRY(check_inside_range("map", address, size));
    PENSTOCK_ASSIGN(const ChunkEntry entry, check_chunk("map", chunk));
    if (entry.size != size) {
      return invalid("map: chunk ", static_cast<std::uint64_t>(chunk), " has ",
                     size_text(entry.size), ", not ", size_text(size), "; a chunk is mapped whole");
    }
    const auto other = first_overlap(address, size);
    if (other == mappings_.end()) return entry;
    return invalid("map: ", span_text(address, size), " overlaps the mapping of ",
                   span_text(other->first, other->second.size));
  }
  // Whole mappings; *count is how many, if it is wanted.
  Status check_mapped(const char* call, Addr address, Bytes size,
                      std::int64_t* count = nullptr) const {
    PENSTOCK_TRY(check_inside_range(call, address, size));
    Addr reached = address;
    std::int64_t found = 0;
    for (auto mapping = mappings_.find(address);
         mapping != mappings_.end() && mapping->first == reached && reached < address + size;
         ++mapping) {
      reached += mapping->second.size;
      ++found;
    }
    if (count != nullptr) *count = found;
    if (reached == address + size) return {};
    return invalid(call, ": ", span_text(address, size),
                   " is not made of whole mappings; they lead only to ", address_text(reached));
  }

  // It has been done.
  void add_range(Addr address, Bytes size) { ranges_.emplace(address, size); }
  void drop_range(Addr address) { ranges_.erase(address); }
  Chunk add_chunk(std::uint64_t token, Bytes size, Place place) {
    const std::uint64_t id = next_chunk_++;
    chunks_.emplace(id, ChunkEntry{.token = token, .size = size, .place = place});
    ++held_;
    return Chunk{id};
  }
  void add_mapping(Addr address, Bytes size, Chunk chunk) {
    const auto id = static_cast<std::uint64_t>(chunk);
    mappings_.emplace(address, Mapping{size, id});
    ++chunks_.at(id).mappings;
  }
  // These two name the chunks that neither a holder nor a mapping keeps any more.  They take no
  // memory: what tears down must work without.
  template <class Unused>
  void release(Chunk chunk, Unused&& unused) {
    const auto id = static_cast<std::uint64_t>(chunk);
    chunks_.at(id).held = false;
    --held_;
    forget_if_unused(id, unused);
  }
  template <class Unused>
  void drop_mappings(Addr address, Bytes size, Unused&& unused) {
    const auto begin = mappings_.find(address);
    auto end = begin;
    for (; end != mappings_.end() && end->first < address + size; ++end) {
      --chunks_.at(end->second.chunk).mappings;
      forget_if_unused(end->second.chunk, unused);
    }
    mappings_.erase(begin, end);
  }

  const std::map<Addr, Bytes>& ranges() const { return ranges_; }
  std::vector<ChunkEntry> held_chunks() const {
    std::vector<ChunkEntry> held;
    for (const auto& [id, entry] : chunks_) {
      if (entry.held) held.push_back(entry);
    }
    return held;
  }
  std::vector<std::pair<Addr, Bytes>> mappings() const {
    std::vector<std::pair<Addr, Bytes>> spans;
    for (const auto& [address, mapping] : mappings_) spans.emplace_back(address, mapping.size);
    return spans;
  }
  // Of the mapping around it; Chunk{}: none.
  Chunk chunk_at(Addr address) const {
    const auto around = first_overlap(address, 1);
    return around == mappings_.end() ? Chunk{} : Chunk{around->second.chunk};
  }
  void count_live(LiveCounts& counts) const {
    counts.ranges = static_cast<std::int64_t>(ranges_.size());
    counts.mappings = static_cast<std::int64_t>(mappings_.size());
    counts.chunks = held_;
  }

 private:
  struct Mapping {
    Bytes size = 0;
    std::uint64_t chunk = 0;
  };
  using Mappings = std::map<Addr, Mapping>;

  Status check_inside_range(const char* call, Addr address, Bytes size) const {
    PENSTOCK_TRY(check_size(call, size));
    if (address % granularity_ != 0) {
      return invalid(call, ": address ", address_text(address), " is not aligned to ",
                     size_text(granularity_));
    }
    auto range = ranges_.upper_bound(address);
    if (range != ranges_.begin()) {
      --range;
      const Bytes offset = address - range->first;
      if (offset < range->second && size <= range->second - offset) return {};
    }
    return invalid(call, ": ", span_text(address, size), " is not inside one reserved range");
  }
  Mappings::const_iterator first_overlap(Addr address, Bytes size) const {
    const auto mapping = mappings_.upper_bound(address);
    if (mapping != mappings_.begin()) {
      const auto before = std::prev(mapping);
      if (before->first + before->second.size > address) return before;
    }
    const bool reached = mapping != mappings_.end() && mapping->first < address + size;
    return reached ? mapping : mappings_.end();
  }
  template <class Unused>
  void forget_if_unused(std::uint64_t id, Unused&& unused) {
    const auto found = chunks_.find(id);
    if (found->second.held || found->second.mappings > 0) return;
    unused(std::as_const(found->second));
    chunks_.erase(found);
  }

  const Bytes granularity_;
  std::map<Addr, Bytes> ranges_;
  Mappings mappings_;
  std::unordered_map<std::uint64_t, ChunkEntry> chunks_;
  std::uint64_t next_chunk_ = 1;
  std::int64_t held_ = 0;
};

}  // namespace penstock::driver
