// SPDX-License-Identifier: Apache-2.0
// The driver's own kernels on one device, compiled by the CUDA driver when they are first needed.
// Thread rule: any thread; launches of one stream at a time, since they share work space.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "driver/cuda/device.hpp"
#include "driver/driver.hpp"

namespace penstock::driver::cuda {

class CudaKernels {
 public:
  explicit CudaKernels(const CudaDevice& device) : device_(device), symbols_(device.symbols()) {}
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  Status copy_if_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                         StreamPtr stream);
  void give_everything_back();

 private:
  Status load();
  Status give_place(Fingerprint& fingerprint);

  const CudaDevice& device_;
  const Symbols& symbols_;
  std::mutex mutex_;
  ModulePtr module_ = nullptr;
  FunctionPtr compare_ = nullptr;
  FunctionPtr copy_ = nullptr;
  DevicePtr work_ = 0;
  std::vector<DevicePtr> digests_;  // kDigests each; given back with everything
  std::size_t digests_taken_ = 0;
};

}  // namespace penstock::driver::cuda
