// SPDX-License-Identifier: Apache-2.0
// What a driver has reserved, created and mapped, and the rules of driver.hpp about it.  Every
// driver's calls go through the ledger, which has the machine carry out what may be done, so that a
// mistake gets the same answer on the emulated GPU as under every version of libcuda.
// Thread rule: none of its own; the owner's lock guards every call.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/text.hpp"

namespace penstock::driver {

inline constexpr Bytes kMostGranules = Bytes{1} << 25;  // of a device: there are books of each

// What a device that is not there may be like.
inline Status check_shape(const char* device, Bytes capacity, Bytes granularity, Bytes least) {
  if (!std::has_single_bit(granularity) || granularity < least) {
    return invalid(device, ": granularity ", granularity, " is not a power of two of at least ",
                   size_text(least));
  }
  if (capacity / granularity <= kMostGranules) return {};
  return invalid(device, ": ", size_text(capacity), " of ", size_text(granularity), "; at most ",
                 size_text(kMostGranules * granularity));
}

class Ledger {
 public:
  struct ChunkEntry {
    std::uint64_t token = 0;  // what the machine calls it: a file offset, a CUDA handle
    Bytes size = 0;
    Place place = Place::kDevice;
    bool held = true;  // not released yet
    int mappings = 0;
  };

  // unused: told of chunks that neither a holder nor a mapping keeps any more.
  explicit Ledger(Bytes granularity, std::function<void(const ChunkEntry&)> unused = nullptr)
      : granularity_(granularity), unused_(std::move(unused)) {}

  // The calls: `machine` does what may be done, and what it has done is written down.  Where either
  // refuses nothing has changed.  What tears down takes no memory.
  template <class Machine>  // gives the address
  Result<Addr> reserve(Bytes size, Machine&& machine) {
    PENSTOCK_TRY(check_size("reserve", size));
    PENSTOCK_ASSIGN(const Addr address, machine());
    ranges_.emplace(address, size);
    return address;
  }
  template <class Machine>
  Status unreserve(Addr address, Bytes size, Machine&& machine) {
    const auto range = ranges_.find(address);
    if (range == ranges_.end() || range->second != size) {
      return invalid("unreserve: ", span_text(address, size), " is not a whole reserved range");
    }
    const auto mapping = first_overlap(address, size);
    if (mapping != mappings_.end()) {
      return invalid("unreserve: ", span_text(address, size), " still holds a mapping of ",
                     span_text(mapping->first, mapping->second.size), "; unmap it first");
    }
    PENSTOCK_TRY(done(machine));
    ranges_.erase(range);
    return {};
  }
  template <class Machine>  // gives the token
  Result<Chunk> create_chunk(Bytes size, Place place, Machine&& machine) {
    PENSTOCK_TRY(check_size("create_chunk", size));
    PENSTOCK_ASSIGN(const std::uint64_t token, machine());
    const std::uint64_t id = next_chunk_++;
    chunks_.emplace(id, ChunkEntry{.token = token, .size = size, .place = place});
    ++held_;
    return Chunk{id};
  }
  template <class Machine>
  Status release_chunk(Chunk chunk, Machine&& machine) {
    PENSTOCK_ASSIGN(const ChunkEntry entry, check_chunk("release_chunk", chunk));
    PENSTOCK_TRY(done(machine, entry));
    const auto id = static_cast<std::uint64_t>(chunk);
    chunks_.at(id).held = false;
    --held_;
    forget_if_unused(id);
    return {};
  }
  template <class Machine>
  Status map(Addr address, Bytes size, Chunk chunk, Machine&& machine) {
    PENSTOCK_TRY(check_inside_range("map", address, size));
    PENSTOCK_ASSIGN(const ChunkEntry entry, check_chunk("map", chunk));
    const auto id = static_cast<std::uint64_t>(chunk);
    if (entry.size != size) {
      return invalid("map: chunk ", id, " has ", size_text(entry.size), ", not ", size_text(size),
                     "; a chunk is mapped whole");
    }
    if (const auto other = first_overlap(address, size); other != mappings_.end()) {
      return invalid("map: ", span_text(address, size), " overlaps the mapping of ",
                     span_text(other->first, other->second.size));
    }
    PENSTOCK_TRY(done(machine, entry));
    mappings_.emplace(address, Mapping{size, id});
    ++chunks_.at(id).mappings;
    return {};
  }
  template <class Machine>  // is told how many mappings it is
  Status unmap(Addr address, Bytes size, Machine&& machine) {
    PENSTOCK_ASSIGN(const std::int64_t mappings, check_mapped("unmap", address, size));
    PENSTOCK_TRY(done(machine, mappings));
    const auto begin = mappings_.find(address);
    auto end = begin;
    for (; end != mappings_.end() && end->first < address + size; ++end) {
      --chunks_.at(end->second.chunk).mappings;
      forget_if_unused(end->second.chunk);
    }
    mappings_.erase(begin, end);
    return {};
  }
  template <class Machine>  // the same
  Status set_access(Addr address, Bytes size, Machine&& machine) const {
    PENSTOCK_ASSIGN(const std::int64_t mappings, check_mapped("set_access", address, size));
    return done(machine, mappings);
  }

  // Held; `call` begins the message.
  Result<ChunkEntry> check_chunk(const char* call, Chunk chunk) const {
    const auto id = static_cast<std::uint64_t>(chunk);
    const auto found = chunks_.find(id);
    if (found != chunks_.end() && found->second.held) return found->second;
    return invalid(call, ": no chunk ", id, ", or released already");
  }
  // Whole mappings: how many.
  Result<std::int64_t> check_mapped(const char* call, Addr address, Bytes size) const {
    PENSTOCK_TRY(check_inside_range(call, address, size));
    Addr reached = address;
    std::int64_t found = 0;
    for (auto mapping = mappings_.find(address);
         mapping != mappings_.end() && mapping->first == reached && reached < address + size;
         ++mapping) {
      reached += mapping->second.size;
      ++found;
    }
    if (reached == address + size) return found;
    return invalid(call, ": ", span_text(address, size),
                   " is not made of whole mappings; they lead only to ", address_text(reached));
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

  // A machine that cannot fail gives nothing.
  template <class Machine, class... About>
  static Status done(Machine& machine, const About&... about) {
    if constexpr (std::is_void_v<decltype(machine(about...))>) {
      machine(about...);
      return {};
    } else {
      return machine(about...);
    }
  }
  Status check_size(const char* call, Bytes size) const {
    if (size != 0 && size % granularity_ == 0) return {};
    return invalid(call, ": size ", size, " is not a positive multiple of ",
                   size_text(granularity_));
  }
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
  void forget_if_unused(std::uint64_t id) {
    const auto found = chunks_.find(id);
    if (found->second.held || found->second.mappings > 0) return;
    if (unused_) unused_(found->second);
    chunks_.erase(found);
  }

  const Bytes granularity_;
  const std::function<void(const ChunkEntry&)> unused_;
  std::map<Addr, Bytes> ranges_;
  Mappings mappings_;
  std::unordered_map<std::uint64_t, ChunkEntry> chunks_;
  std::uint64_t next_chunk_ = 1;
  std::int64_t held_ = 0;
};

}  // namespace penstock::driver
