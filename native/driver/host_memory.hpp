// SPDX-License-Identifier: Apache-2.0
// Ranges, chunks and mappings of the emulated GPU.  A range is a PROT_NONE reservation; a mapping
// shares a piece of a memfd into it, so that a chunk at two addresses is one memory, and whatever
// is not mapped, or has no access, is a SIGSEGV to touch.  No call here waits for work in flight.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/host_backing.hpp"

namespace penstock::driver {

class HostMemory {
 public:
  static Result<std::unique_ptr<HostMemory>> open(Bytes granularity);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  Result<Addr> reserve(Bytes size);
  Status unreserve(Addr address, Bytes size);
  Result<Chunk> create_chunk(Bytes size, Place place);  // the caller has checked capacity
  Status release_chunk(Chunk chunk);
  Status map(Addr address, Bytes size, Chunk chunk);
  Status unmap(Addr address, Bytes size);
  Status set_access(Addr address, Bytes size);

  Status check_multiple(const char* call, Bytes size) const;
  Bytes used(Place place) const;  // by chunks that are held or still mapped
  void count_live(LiveCounts& counts) const;

 private:
  struct ChunkState {
    Bytes offset = 0;
    Bytes size = 0;
    Place place = Place::kDevice;
    bool held = true;  // not released yet
    int mappings = 0;
  };
  struct Mapping {
    Bytes size = 0;
    std::uint64_t chunk = 0;
  };
  using Mappings = std::map<Addr, Mapping>;
  struct Span {  // the mappings that make up an address range exactly
    Mappings::iterator begin;
    Mappings::iterator end;
  };

  HostMemory(Bytes granularity, std::unique_ptr<HostBacking> device,
             std::unique_ptr<HostBacking> host)
      : granularity_(granularity), device_(std::move(device)), host_(std::move(host)) {}

  HostBacking& backing(Place place) { return place == Place::kDevice ? *device_ : *host_; }
  Status check_span(const char* call, Addr address, Bytes size) const;
  Result<Span> whole_mappings(const char* call, Addr address, Bytes size);
  Mappings::const_iterator first_overlap(Addr address, Bytes size) const;
  void drop_if_unused(std::uint64_t id);

  const Bytes granularity_;
  const std::unique_ptr<HostBacking> device_;
  const std::unique_ptr<HostBacking> host_;
  std::map<Addr, Bytes> ranges_;
  Mappings mappings_;
  std::unordered_map<std::uint64_t, ChunkState> chunks_;
  std::uint64_t next_chunk_ = 1;
  std::int64_t held_chunks_ = 0;
};

}  // namespace penstock::driver
