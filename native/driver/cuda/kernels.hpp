// SPDX-License-Identifier: Apache-2.0
// The driver's own kernels on one device, compiled by the CUDA driver when they are first needed.
// Thread rule: any thread; launches of one stream at a time, since they share work space.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <mutex>
#include <utility>
#include <vector>

#include "base/undo.hpp"
#include "driver/cuda/device.hpp"
#include "driver/driver.hpp"
#include "driver/kernels/changed_copy_ptx.hpp"
#include "driver/kernels/decode_ptx.hpp"
#include "driver/kernels/encode_ptx.hpp"

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
    const std::uint64_t blocks = std::clamp<std::uint64_t>(words / kThreads, 1, kCompareBlocks);
    std::uint32_t known = std::exchange(fingerprint->valid, 0);
    std::uint32_t* counts = &fingerprint->changes;
    void* host = still ? to : nullptr;
    if (host == nullptr) {
      PENSTOCK_TRY(device_.call(symbols_.cuMemcpyDtoHAsync, {size}, to, from, size, stream));
    }
    void* parameters[] = {&from, &words, &fingerprint->place, &known, &counts, &host, &work_};
    PENSTOCK_TRY(launch(compare_, blocks, kThreads, stream, parameters));
    fingerprint->valid = 1;  // for what follows in the stream
    return {};
  }
  Status survey(Addr counts, Addr raw, Bytes size, StreamPtr stream) {
    PENSTOCK_TRY(load_codec());
    std::uint64_t values = size / 2;
    void* parameters[] = {&counts, &raw, &values};
    const std::uint64_t blocks = divide_up(values, codec::kTile);
    return launch(survey_, std::min<std::uint64_t>(blocks, kSurveyBlocks), kTileThreads, stream,
                  parameters);
  }
  Status encode(Addr to, Addr from, const codec::Survey& survey, StreamPtr stream) {
    PENSTOCK_TRY(load_codec());
    const codec::Shape& shape = survey.shape;
    std::uint64_t values = shape.values();
    std::uint64_t tiles = shape.tiles();
    CodeParts at(to, shape);
    codec::Header header = survey.header();
    PENSTOCK_TRY(
        device_.call(symbols_.cuMemsetD8Async, {shape.size()}, to, 0, shape.size(), stream));
    void* of_encode[] = {&to, &from, &values, &at.pairs, &at.planes, &at.starts, &header};
    PENSTOCK_TRY(launch(encode_, tiles, kTileThreads, stream, of_encode));
    void* of_starts[] = {&at.starts, &tiles};
    PENSTOCK_TRY(launch(starts_, 1, kTileThreads, stream, of_starts));
    void* of_escapes[] = {&from, &values, &at.starts, &at.positions, &at.others, &header};
    return launch(escapes_, tiles, kTileThreads, stream, of_escapes);
  }
  Status decode(Addr to, Addr from, const codec::Shape& shape, StreamPtr stream) {
    PENSTOCK_TRY(load_codec());
    std::uint64_t values = shape.values();
    CodeParts at(from, shape);
    std::uint64_t escapes = shape.escapes;
    unsigned wide = shape.width == 4 ? 1 : 0;
    void* parameters[] = {&to,        &from,         &values,    &at.pairs, &at.planes,
                          &at.starts, &at.positions, &at.others, &escapes,  &wide};
    const std::uint64_t blocks = divide_up(shape.tiles(), kDecodeThreads / kTileThreads);
    return launch(decode_, std::min<std::uint64_t>(blocks, kDecodeBlocks), kDecodeThreads, stream,
                  parameters);
  }
  void give_everything_back() {
    for (const DevicePtr digests : digests_) symbols_.cuMemFree(digests);
    if (work_ != 0) symbols_.cuMemFree(std::exchange(work_, 0));
    for (ModulePtr* module : {&module_, &decoder_, &encoder_}) {
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
  static constexpr unsigned kSurveyBlocks = 264;
  static constexpr unsigned kTileThreads = 256;
  static constexpr Bytes kWorkBytes = 24;
  static constexpr Bytes kDigestBytes = 16;
  static constexpr std::size_t kDigests = 4096;  // taken at a time

  using Function = std::pair<const char*, FunctionPtr*>;

  // Where a code's parts lie, as kernels are told.
  struct CodeParts {
    CodeParts(Addr code, const codec::Shape& shape)
        : pairs(code + shape.pairs_at()),
          planes(code + shape.planes_at()),
          starts(code + shape.starts_at()),
          positions(code + shape.positions_at()),
          others(code + shape.others_at()) {}
    Addr pairs, planes, starts, positions, others;
  };

  Status launch(FunctionPtr function, std::uint64_t blocks, unsigned threads, StreamPtr stream,
                void** parameters) {
    return device_.call(symbols_.cuLaunchKernel, {}, function, static_cast<unsigned>(blocks), 1, 1,
                        threads, 1, 1, 0, stream, parameters, nullptr);
  }
  Status load() {
    const std::lock_guard lock(mutex_);
    if (work_ != 0) return {};
    const CudaScope scope(device_);
    PENSTOCK_TRY(load(module_, kChangedCopyPtx, {{"penstock_compare", &compare_}}));
    DevicePtr work = 0;
    PENSTOCK_TRY(device_.call(symbols_.cuMemAlloc, {kWorkBytes}, &work, kWorkBytes));
    Undo undo([&] { symbols_.cuMemFree(work); });
    PENSTOCK_TRY(device_.call(symbols_.cuMemsetD8Async, {}, work, 0, kWorkBytes, nullptr));
    PENSTOCK_TRY(device_.call(symbols_.cuCtxSynchronize, {}));
    undo.keep();
    work_ = work;
    return {};
  }
  Status load_codec() {
    const std::lock_guard lock(mutex_);
    if (encoder_ != nullptr) return {};  // the last of them
    const CudaScope scope(device_);
    PENSTOCK_TRY(load(decoder_, kDecodePtx, {{"penstock_decode", &decode_}}));
    return load(encoder_, kEncodePtx,
                {{"penstock_survey", &survey_},
                 {"penstock_encode", &encode_},
                 {"penstock_starts", &starts_},
                 {"penstock_escapes", &escapes_}});
  }
  // Once.
  Status load(ModulePtr& module, const char* ptx, std::initializer_list<Function> functions) {
    if (module != nullptr) return {};
    const char* const what = "cuModuleLoadData of Penstock's kernels";
    ModulePtr loaded = nullptr;
    PENSTOCK_TRY(device_.check(symbols_.cuModuleLoadData(&loaded, ptx), what));
    Undo undo([&] { symbols_.cuModuleUnload(loaded); });
    for (const auto& [name, function] : functions) {
      PENSTOCK_TRY(device_.call(symbols_.cuModuleGetFunction, {}, function, loaded, name));
    }
    undo.keep();
    module = loaded;
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
  ModulePtr encoder_ = nullptr;
  FunctionPtr compare_ = nullptr;
  FunctionPtr decode_ = nullptr;
  FunctionPtr survey_ = nullptr;
  FunctionPtr encode_ = nullptr;
  FunctionPtr starts_ = nullptr;
  FunctionPtr escapes_ = nullptr;
  DevicePtr work_ = 0;
  std::vector<DevicePtr> digests_;  // kDigests each; given back with everything
  std::size_t digests_taken_ = 0;
};

}  // namespace penstock::driver::cuda
