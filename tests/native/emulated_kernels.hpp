// SPDX-License-Identifier: Apache-2.0
// Our kernels on the emulated GPU, behind the emulated libcuda.so.1: found by name, launched with
// the parameters that the CUDA driver hands over.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string_view>

#include "driver/cuda/abi.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver::cuda {

inline constexpr std::array<std::string_view, 3> kKernels{
    "penstock_compare", "penstock_copy_if_changed", "penstock_decode"};
inline int kernel_places[kKernels.size()];

// Null where there is none of that name.
inline FunctionPtr find_kernel(const char* name) {
  const auto* const found = std::ranges::find(kKernels, name);
  if (found == kKernels.end()) return nullptr;
  return reinterpret_cast<FunctionPtr>(&kernel_places[found - kKernels.begin()]);
}

// That all pointers are where the code's shape says.
inline Status launch_decode(HostDriver& gpu, Stream stream, void** parameters) {
  const auto parameter = [&](int i) { return *static_cast<std::uint64_t*>(parameters[i]); };
  const Addr code = parameter(1);
  const codec::Shape shape{2 * parameter(2), parameter(6)};
  if (parameter(3) != code + shape.indices_at() || parameter(4) != code + shape.starts_at() ||
      parameter(5) != code + shape.escapes_at()) {
    return invalid("pointers that are not the code's");
  }
  return gpu.decode(parameter(0), code, shape, stream);
}

// With both of copy_out_changed() launched the second does the work.
inline Status launch_kernel(HostDriver& gpu, FunctionPtr function, Stream stream,
                            void** parameters) {
  const auto which = reinterpret_cast<int*>(function) - kernel_places;
  if (which == 2) return launch_decode(gpu, stream, parameters);
  const auto from = *static_cast<DevicePtr*>(parameters[0]);
  const auto size = 16 * *static_cast<std::uint64_t*>(parameters[1]);
  const auto* page = reinterpret_cast<const void*>(from);
  static thread_local bool known = false;
  static thread_local std::uint32_t* copies = nullptr;
  const bool first = which == 0;
  if (first) {
    known = *static_cast<std::uint32_t*>(parameters[3]) != 0;
    copies = *static_cast<std::uint32_t**>(parameters[4]);
  }
  void* const host = *static_cast<void**>(parameters[first ? 5 : 2]);
  if (host == nullptr) return {};
  return gpu.launch(stream, [=, was = known, count = copies] {
    if (was && std::memcmp(host, page, size) == 0) return;
    std::memcpy(host, page, size);
    ++std::atomic_ref(*count);
  });
}

}  // namespace penstock::driver::cuda
