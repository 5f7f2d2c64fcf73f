// SPDX-License-Identifier: Apache-2.0
#include "driver/cuda/kernels.hpp"

#include <algorithm>
#include <utility>

#include "driver/kernels/changed_copy_ptx.hpp"

namespace penstock::driver::cuda {
namespace {

constexpr Bytes kWord = 16;
constexpr unsigned kThreads = 512;
// Two a multiprocessor of an H200.
constexpr unsigned kCompareBlocks = 264;
// Enough to fill the link; more would only take room from the program's kernels.
constexpr unsigned kCopyBlocks = 16;
constexpr Bytes kWorkBytes = 24;
constexpr Bytes kDigestBytes = 16;
constexpr std::size_t kDigests = 4096;  // taken at a time

}  // namespace

Status CudaKernels::load() {
  const std::lock_guard lock(mutex_);
  if (module_ != nullptr) return {};
  ModulePtr module = nullptr;
  PENSTOCK_TRY(device_.check(symbols_.cuModuleLoadData(&module, kChangedCopyPtx),
                             "cuModuleLoadData of Penstock's kernels"));
  Status status = device_.check(symbols_.cuModuleGetFunction(&compare_, module, "penstock_compare"),
                                "cuModuleGetFunction");
  if (status.ok()) {
    status = device_.check(symbols_.cuModuleGetFunction(&copy_, module, "penstock_copy_if_changed"),
                           "cuModuleGetFunction");
  }
  if (status.ok()) {
    status = device_.check(symbols_.cuMemAlloc(&work_, kWorkBytes), "cuMemAlloc", kWorkBytes);
  }
  if (status.ok()) {
    status = device_.check(symbols_.cuMemsetD8Async(work_, 0, kWorkBytes, nullptr), "cuMemsetD8");
  }
  if (status.ok()) status = device_.check(symbols_.cuCtxSynchronize(), "cuCtxSynchronize");
  if (!status.ok()) {
    if (work_ != 0) symbols_.cuMemFree(work_);
    work_ = 0;
    symbols_.cuModuleUnload(module);
    return status;
  }
  module_ = module;
  return {};
}

Status CudaKernels::give_place(Fingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  if (digests_taken_ == kDigests * digests_.size()) {
    constexpr Bytes kBytes = kDigests * kDigestBytes;
    DevicePtr more = 0;
    PENSTOCK_TRY(device_.check(symbols_.cuMemAlloc(&more, kBytes), "cuMemAlloc", kBytes));
    digests_.push_back(more);
  }
  fingerprint.place = digests_.back() + digests_taken_++ % kDigests * kDigestBytes;
  return {};
}

Status CudaKernels::copy_if_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                    StreamPtr stream) {
  const CudaScope scope(device_);
  PENSTOCK_TRY(load());
  if (fingerprint->place == 0) PENSTOCK_TRY(give_place(*fingerprint));
  std::uint64_t words = size / kWord;
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::uint64_t>(words / kThreads, 1, kCompareBlocks));
  std::uint32_t known = std::exchange(fingerprint->valid, 0);
  std::uint32_t* copies = &fingerprint->copies;
  const bool changes = fingerprint->still == 0;
  void* at_once = changes ? nullptr : to;
  void* compared[] = {&from, &words, &fingerprint->place, &known, &copies, &at_once, &work_};
  PENSTOCK_TRY(device_.check(
      symbols_.cuLaunchKernel(compare_, blocks, 1, 1, kThreads, 1, 1, 0, stream, compared, nullptr),
      "cuLaunchKernel"));
  if (changes) {
    void* copied[] = {&from, &words, &to, &work_};
    PENSTOCK_TRY(device_.check(symbols_.cuLaunchKernel(copy_, kCopyBlocks, 1, 1, kThreads, 1, 1, 0,
                                                       stream, copied, nullptr),
                               "cuLaunchKernel"));
  }
  fingerprint->valid = 1;  // for what follows in the stream
  return {};
}

void CudaKernels::give_everything_back() {
  if (module_ == nullptr) return;
  for (const DevicePtr digests : digests_) symbols_.cuMemFree(digests);
  symbols_.cuMemFree(work_);
  symbols_.cuModuleUnload(module_);
  module_ = nullptr;
}

}  // namespace penstock::driver::cuda
