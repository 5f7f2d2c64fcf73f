// SPDX-License-Identifier: Apache-2.0
// Virtual memory management on CUDA.  Every call holds one lock: the driver's own heap has been
// seen to break when mappings change from several threads at once.  The lock is never held while
// waiting for work.
// Thread rule: any thread.
#pragma once

#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/cuda_device.hpp"
#include "driver/driver.hpp"
#include "driver/ledger.hpp"

namespace penstock::driver::cuda {

class CudaMemory {
 public:
  explicit CudaMemory(const CudaDevice& device)
      : device_(device),
        symbols_(device.symbols()),
        ledger_(device.info().granularity),
        access_{{device.device_location(), kAccessReadWrite}} {}
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  Result<Addr> reserve(Bytes size);
  Status unreserve(Addr address, Bytes size);
  Result<Chunk> create_chunk(Bytes size, Place place);
  Status release_chunk(Chunk chunk);
  Status map(Addr address, Bytes size, Chunk chunk);
  Status unmap(Addr address, Bytes size);
  Status set_access(Addr address, Bytes size);
  Status share_with(Device peer);

  void count_live(LiveCounts& counts) const;
  void give_everything_back();  // at the end; nothing on the device may be running on it

 private:
  Status check_supported(const char* call, Place place) const;
  // Under the lock, both.  kNotReady: try again.
  Status try_set_access(Addr address, Bytes size);
  Status map_again(Addr address, Bytes size);

  const CudaDevice& device_;
  const Symbols& symbols_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  std::vector<AccessDescriptor> access_;  // this device first, then those it shares with
};

}  // namespace penstock::driver::cuda
