// SPDX-License-Identifier: Apache-2.0
// What a driver has reserved, created and mapped, and the rules of driver.hpp about it.  Both
// drivers ask the ledger before they touch the machine and tell it afterwards, so that a mistake
// gets the same answer on the emulated GPU as under every version of libcuda.
// Thread rule: none of its own; the owner's lock guards every call.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"

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
  Status check_size(const char* call, Bytes size) const;
  Status check_range(Addr address, Bytes size) const;  // a whole range without a mapping
  Result<ChunkEntry> check_chunk(const char* call, Chunk chunk) const;  // held
  Result<ChunkEntry> check_map(Addr address, Bytes size, Chunk chunk) const;
  // Whole mappings; *count is how many, if it is wanted.
  Status check_mapped(const char* call, Addr address, Bytes size,
                      std::int64_t* count = nullptr) const;

  // It has been done.
  void add_range(Addr address, Bytes size) { ranges_.emplace(address, size); }
  void drop_range(Addr address) { ranges_.erase(address); }
  Chunk add_chunk(std::uint64_t token, Bytes size, Place place);
  void add_mapping(Addr address, Bytes size, Chunk chunk);
  // These two return the chunks that neither a holder nor a mapping keeps any more.
  std::vector<ChunkEntry> release(Chunk chunk);
  std::vector<ChunkEntry> drop_mappings(Addr address, Bytes size);

  const std::map<Addr, Bytes>& ranges() const { return ranges_; }
  std::vector<ChunkEntry> held_chunks() const;
  std::vector<std::pair<Addr, Bytes>> mappings() const;
  Chunk chunk_at(Addr address) const;  // of the mapping around it; Chunk{}: none
  void count_live(LiveCounts& counts) const;

 private:
  struct Mapping {
    Bytes size = 0;
    std::uint64_t chunk = 0;
  };
  using Mappings = std::map<Addr, Mapping>;

  Status check_inside_range(const char* call, Addr address, Bytes size) const;
  Mappings::const_iterator first_overlap(Addr address, Bytes size) const;
  void collect_if_unused(std::uint64_t id, std::vector<ChunkEntry>& unused);

  const Bytes granularity_;
  std::map<Addr, Bytes> ranges_;
  Mappings mappings_;
  std::unordered_map<std::uint64_t, ChunkEntry> chunks_;
  std::uint64_t next_chunk_ = 1;
  std::int64_t held_ = 0;
};

}  // namespace penstock::driver
