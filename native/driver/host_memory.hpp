// SPDX-License-Identifier: Apache-2.0
// Ranges, chunks and mappings of the emulated GPU.  A range is a PROT_NONE reservation; a mapping
// shares a piece of a memfd into it, so that a chunk at two addresses is one memory, and whatever
// is not mapped, or has no access, is a SIGSEGV to touch.  No call here waits for work in flight.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/host_backing.hpp"
#include "driver/ledger.hpp"

namespace penstock::driver {

class HostMemory {
 public:
  static Result<std::unique_ptr<HostMemory>> open(Bytes granularity);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  Result<Addr> reserve(Bytes size);
  Status unreserve(Addr address, Bytes size);
  Result<Chunk> create_chunk(Bytes size, Place place);  // the caller has checked size and capacity
  Status release_chunk(Chunk chunk);
  Status map(Addr address, Bytes size, Chunk chunk);
  Status unmap(Addr address, Bytes size);
  Status set_access(Addr address, Bytes size);

  Bytes used(Place place) const;  // by chunks that are held or still mapped
  const Ledger& ledger() const { return ledger_; }

 private:
  HostMemory(Bytes granularity, std::unique_ptr<HostBacking> device,
             std::unique_ptr<HostBacking> host)
      : granularity_(granularity),
        device_(std::move(device)),
        host_(std::move(host)),
        ledger_(granularity) {}

  HostBacking& backing(Place place) { return place == Place::kDevice ? *device_ : *host_; }
  void give_back(const std::vector<Ledger::ChunkEntry>& chunks);

  const Bytes granularity_;
  const std::unique_ptr<HostBacking> device_;
  const std::unique_ptr<HostBacking> host_;
  Ledger ledger_;
};

}  // namespace penstock::driver
