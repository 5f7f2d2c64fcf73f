// SPDX-License-Identifier: Apache-2.0
#include "driver/cuda_kernels.hpp"

#include <algorithm>

#include "driver/kernels/changed_copy_ptx.hpp"

namespace penstock::driver::cuda {
namespace {

constexpr Bytes kWord = 16;
constexpr unsigned kThreads = 512;
// Two a multiprocessor of an H200; the work space has room for 512.
constexpr unsigned kCompareBlocks = 264;
// Enough to fill the link; more would only take room from the program's kernels.
constexpr unsigned kCopyBlocks = 16;
constexpr Bytes kWorkBytes = 16 + 512 * 16;

}  // namespace

Status CudaKernels::load() {
  const std::lock_guard lock(mutex_);
  if (module_ != nullptr) return {};
  ModulePtr module = nullptr;
  PENSTOCK_TRY(device_.check(symbols_.module_load_data(&module, kChangedCopyPtx),
                             "cuModuleLoadData of Penstock's kernels"));
  Status status = device_.check(symbols_.module_get_function(&compare_, module, "penstock_compare"),
                                "cuModuleGetFunction");
  if (status.ok()) {
    status = device_.check(symbols_.module_get_function(&copy_, module, "penstock_copy_if_changed"),
                           "cuModuleGetFunction");
  }
  if (status.ok()) {
    status = device_.check(symbols_.mem_alloc(&work_, kWorkBytes), "cuMemAlloc", kWorkBytes);
  }
  if (status.ok()) {
    status = device_.check(symbols_.memset_d8_async(work_, 0, kWorkBytes, nullptr), "cuMemsetD8");
  }
  if (status.ok()) status = device_.check(symbols_.context_synchronize(), "cuCtxSynchronize");
  if (!status.ok()) {
    if (work_ != 0) symbols_.mem_free(work_);
    work_ = 0;
    symbols_.module_unload(module);
    return status;
  }
  module_ = module;
  return {};
}

Status CudaKernels::copy_if_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                    StreamPtr stream) {
  const CudaScope scope(device_);
  PENSTOCK_TRY(load());
  std::uint64_t words = size / kWord;
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::uint64_t>(words / kThreads, 1, kCompareBlocks));
  void* compared[] = {&from, &words, &fingerprint, &work_};
  PENSTOCK_TRY(device_.check(
      symbols_.launch_kernel(compare_, blocks, 1, 1, kThreads, 1, 1, 0, stream, compared, nullptr),
      "cuLaunchKernel"));
  void* copied[] = {&from, &words, &to, &work_};
  return device_.check(
      symbols_.launch_kernel(copy_, kCopyBlocks, 1, 1, kThreads, 1, 1, 0, stream, copied, nullptr),
      "cuLaunchKernel");
}

void CudaKernels::give_everything_back() {
  if (module_ == nullptr) return;
  symbols_.mem_free(work_);
  symbols_.module_unload(module_);
  module_ = nullptr;
}

}  // namespace penstock::driver::cuda
