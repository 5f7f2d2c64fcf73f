// SPDX-License-Identifier: Apache-2.0
// One CUDA device: its primary context (the one PyTorch uses), what it can do, and how a CUresult
// becomes a Status with the call, the error's name, the bytes and the memory that is left.
// Invariant: the context is retained from open to destruction.  Thread rule: any thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/cuda/symbols.hpp"
#include "driver/driver.hpp"

namespace penstock::driver::cuda {

class CudaDevice;

// While it lives, the device's context is the calling thread's, and a stream capture going on
// elsewhere in the process is not broken by calls that a capture does not allow.
class CudaScope {
 public:
  explicit CudaScope(const CudaDevice& device);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  const Symbols& symbols_;
  bool pushed_ = false;
  bool exchanged_ = false;
  int capture_mode_ = kCaptureModeRelaxed;
};

// What a call is about, for its message.
struct CallFor {
  Bytes size = 0;                // 0: none
  Place place = Place::kDevice;  // whose memory ran out
};

class CudaDevice {
 public:
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const Symbols& symbols() const { return symbols_; }
  const DeviceInfo& info() const { return info_; }
  ContextPtr context() const { return context_; }
  bool registers_host_memory() const { return registers_host_memory_; }  // where it lies
  int host_numa() const { return host_numa_; }  // the node of the host's next to it; -1: none
  bool owned_here() const;  // false in a forked child, where CUDA cannot be used

  Location device_location() const { return {kLocationDevice, device_}; }
  AllocationProperties properties(Place place) const;
  // The device with this ordinal, if it can reach this one's memory, else kUnsupported.
  Result<Device> find_peer(int ordinal) const;

  // One call in the device's context, its failure in words.
  template <class Function, class... Arguments>
  Status call(const Symbol<Function>& symbol, CallFor what, Arguments... arguments) const {
    const CudaScope scope(*this);
    return check(symbol(arguments...), symbol.name, what);
  }
  Status check(Error error, const char* call, CallFor what = {}) const;

 private:
  CudaDevice(const Symbols& symbols, Device device);

  Status fill_info(int ordinal);
  Status fill_granularity();
  int attribute(Attribute which) const;  // 0 where the driver does not know it
  std::string error_name(Error error) const;
  std::string memory_left(Place place) const;

  const Symbols symbols_;
  const Device device_;
  ContextPtr context_ = nullptr;
  DeviceInfo info_;
  int host_numa_ = -1;
  bool rdma_ = false;
  bool registers_host_memory_ = false;
  const pid_t owner_;
};

}  // namespace penstock::driver::cuda
