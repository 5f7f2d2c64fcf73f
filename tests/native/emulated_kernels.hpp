// SPDX-License-Identifier: Apache-2.0
// Our kernels on the emulated GPU, behind the emulated libcuda.so.1: found by name, launched with
// the parameters that the CUDA driver hands over.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <string_view>

#include "codec/digest.hpp"
#include "driver/cuda/abi.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver::cuda {

inline constexpr std::array<std::string_view, 6> kKernels{"penstock_compare", "penstock_decode",
                                                          "penstock_survey",  "penstock_encode",
                                                          "penstock_starts",  "penstock_escapes"};
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
  const bool wide = *static_cast<unsigned*>(parameters[9]) != 0;
  const codec::Shape shape{2 * parameter(2), parameter(8), wide ? 4U : 3U};
  if (parameter(3) != code + shape.pairs_at() || parameter(4) != code + shape.planes_at() ||
      parameter(5) != code + shape.starts_at() || parameter(6) != code + shape.positions_at() ||
      parameter(7) != code + shape.others_at()) {
    return invalid("pointers that are not the code's");
  }
  return gpu.decode(parameter(0), code, shape, stream);
}

// All of a code, by the first of its three kernels.
inline Status launch_encode(HostDriver& gpu, Stream stream, void** parameters) {
  const auto parameter = [&](int i) { return *static_cast<std::uint64_t*>(parameters[i]); };
  const auto& header = *static_cast<codec::Header*>(parameters[6]);
  const Addr code = parameter(0);
  const codec::Survey survey{{2 * parameter(2), header.escapes, header.width}, header.exponents};
  if (header.raw_bytes != survey.shape.raw_bytes ||
      parameter(3) != code + survey.shape.pairs_at() ||
      parameter(4) != code + survey.shape.planes_at() ||
      parameter(5) != code + survey.shape.starts_at()) {
    return invalid("pointers that are not the code's");
  }
  return gpu.encode(code, parameter(1), survey, stream);
}

// Compares by a digest of its own, kept where the kernel keeps its.
inline Status launch_kernel(HostDriver& gpu, FunctionPtr function, Stream stream,
                            void** parameters) {
  if (function == find_kernel("penstock_decode")) return launch_decode(gpu, stream, parameters);
  if (function == find_kernel("penstock_encode")) return launch_encode(gpu, stream, parameters);
  if (function == find_kernel("penstock_survey")) {
    const auto parameter = [&](int i) { return *static_cast<std::uint64_t*>(parameters[i]); };
    return gpu.survey(parameter(0), parameter(1), 2 * parameter(2), stream);
  }
  if (function != find_kernel("penstock_compare")) return {};
  const auto from = *static_cast<DevicePtr*>(parameters[0]);
  const auto size = 16 * *static_cast<std::uint64_t*>(parameters[1]);
  auto* const digest = *static_cast<std::uint64_t**>(parameters[2]);
  const bool known = *static_cast<std::uint32_t*>(parameters[3]) != 0;
  auto* const counts = *static_cast<std::uint32_t**>(parameters[4]);
  void* const host = *static_cast<void**>(parameters[5]);
  return gpu.launch(stream, [=] {
    const std::span page(reinterpret_cast<const std::byte*>(from), size);
    const std::uint64_t found = codec::digest(page);
    if (known && *digest == found) return;
    *digest = found;
    if (known) ++std::atomic_ref(counts[0]);
    if (host == nullptr) return;
    std::memcpy(host, page.data(), size);
    ++std::atomic_ref(counts[1]);
  });
}

}  // namespace penstock::driver::cuda
