// SPDX-License-Identifier: Apache-2.0
// The driver's own kernels on one device, compiled by the CUDA driver when they are first needed.
// Thread rule: any thread; launches of one stream at a time, since they share work space.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/undo.hpp"
#include "driver/cuda/device.hpp"
#include "driver/driver.hpp"
#include "driver/kernels/changed_copy_ptx.hpp"
#include "driver/kernels/decode_ptx.hpp"

namespace penstock::driver::cuda {

class CudaKernels {
 public:
  explicit CudaKernels(const CudaDevice& device) : device_(device), symbols_(device.symbols()) {}
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // By the copy engine, and compared behind it; or, where it is likely to be the same, compared and
  // copied by one launch if it is not.
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint, bool still,
                          StreamPtr stream) {
    PENSTOCK_TRY(load());
    if (fingerprint->place == 0) PENSTOCK_TRY(give_place(*fingerprint));
    std::uint64_t words = size / kWord;
    const auto blocks =
        static_cast<unsigned>(std::clamp<std::uint64_t>(words / kThreads, 1, kCompareBlocks));
    std::uint32_t known = std::exchange(fingerprint->valid, 0);
    std::uint32_t* counts = &fingerprint->changes;
    void* host = still ? to : nullptr;
    if (host == nullptr) {
      PENSTOCK_TRY(device_.call(symbols_.cuMemcpyDtoHAsync, {size}, to, from, size, stream));
    }
    void* parameters[] = {&from, &words, &fingerprint->place, &known, &counts, &host, &work_};
    PENSTOCK_TRY(device_.call(symbols_.cuLaunchKernel, {}, compare_, blocks, 1, 1, kThreads, 1, 1,
                              0, stream, parameters, nullptr));
    fingerprint->valid = 1;  // for what follows in the stream
    return {};
  }
  Status decode(Addr to, Addr from, const codec::Shape& shape, StreamPtr stream) {
    PENSTOCK_TRY(load());
    std::uint64_t values = shape.values();
    Addr pairs = from + shape.pairs_at();
    Addr planes = from + shape.planes_at();
    Addr starts = from + shape.starts_at();
    Addr positions = from + shape.positions_at();
    Addr others = from + shape.others_at();
    std::uint64_t escapes = shape.escapes;
    unsigned wide = shape.width == 4 ? 1 : 0;
    void* parameters[] = {&to,     &from,      &values, &pairs,   &planes,
                          &starts, &positions, &others, &escapes, &wide};
    const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(
        divide_up(shape.tiles(), kDecodeThreads / kTileThreads), kDecodeBlocks));
    return device_.call(symbols_.cuLaunchKernel, {}, decode_, blocks, 1, 1, kDecodeThreads, 1, 1, 0,
                        stream, parameters, nullptr);
  }
  void give_everything_back() {
    for (const DevicePtr digests : digests_) symbols_.cuMemFree(digests);
    if (work_ != 0) symbols_.cuMemFree(std::exchange(work_, 0));
    for (ModulePtr* module : {&module_, &decoder_}) {
      if (*module != nullptr) symbols_.cuModuleUnload(std::exchange(*module, nullptr));
    }
  }

 private:
  static constexpr Bytes kWord = 16;
  static constexpr unsigned kThreads = 512;
  // Two a multiprocessor of an H200.
  static constexpr unsigned kCompareBlocks = 264;
  // One a multiprocessor of an H200.  More decode a tenth more, and slow products beside them down
  // alike (benchmarks/results/compression/h100-kernels.txt).
  static constexpr unsigned kDecodeBlocks = 132;
  static constexpr unsigned kDecodeThreads = 512;
  static constexpr unsigned kTileThreads = 256;
  static constexpr Bytes kWorkBytes = 24;
  static constexpr Bytes kDigestBytes = 16;
  static constexpr std::size_t kDigests = 4096;  // taken at a time

  Status load() {
    const std::lock_guard lock(mutex_);
    if (module_ != nullptr) return {};
    const CudaScope scope(device_);
    Undo undo([this] { give_everything_back(); });
    const char* const what = "cuModuleLoadData of Penstock's kernels";
    PENSTOCK_TRY(device_.check(symbols_.cuModuleLoadData(&module_, kChangedCopyPtx), what));
    PENSTOCK_TRY(device_.check(symbols_.cuModuleLoadData(&decoder_, kDecodePtx), what));
    const auto& find = symbols_.cuModuleGetFunction;
    PENSTOCK_TRY(device_.call(find, {}, &compare_, module_, "penstock_compare"));
    PENSTOCK_TRY(device_.call(find, {}, &decode_, decoder_, "penstock_decode"));
    PENSTOCK_TRY(device_.call(symbols_.cuMemAlloc, {kWorkBytes}, &work_, kWorkBytes));
    PENSTOCK_TRY(device_.call(symbols_.cuMemsetD8Async, {}, work_, 0, kWorkBytes, nullptr));
    PENSTOCK_TRY(device_.call(symbols_.cuCtxSynchronize, {}));
    undo.keep();
    return {};
  }
  Status give_place(Fingerprint& fingerprint) {
    const std::lock_guard lock(mutex_);
    if (digests_taken_ == kDigests * digests_.size()) {
      constexpr Bytes kBytes = kDigests * kDigestBytes;
      DevicePtr more = 0;
      PENSTOCK_TRY(device_.call(symbols_.cuMemAlloc, {kBytes}, &more, kBytes));
      digests_.push_back(more);
    }
    fingerprint.place = digests_.back() + digests_taken_++ % kDigests * kDigestBytes;
    return {};
  }

  const CudaDevice& device_;
  const Symbols& symbols_;
  std::mutex mutex_;
  ModulePtr module_ = nullptr;
  ModulePtr decoder_ = nullptr;
  FunctionPtr decode_ = nullptr;
  FunctionPtr compare_ = nullptr;
  DevicePtr work_ = 0;
  std::vector<DevicePtr> digests_;  // kDigests each; given back with everything
  std::size_t digests_taken_ = 0;
};

}  // namespace penstock::driver::cuda
