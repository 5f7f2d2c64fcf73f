// SPDX-License-Identifier: Apache-2.0
// The knobs and dials of the emulated libcuda.so.1 (emulated_cuda.cpp), for the tests of the CUDA
// driver: what the library shall answer, and what has been done to it.
#pragma once

#include <atomic>
#include <cstdint>

#include "driver/emulated/driver.hpp"

namespace penstock::driver::cuda {

struct EmulatedCuda {
  std::atomic<int> version{13000};
  std::atomic<int> init_error{0};
  std::atomic<int> not_ready{0};       // so many calls of cuMemSetAccess answer NOT_READY
  std::atomic<bool> shut_down{false};  // every call answers DEINITIALIZED, as at process exit
  std::atomic<int> contexts{0};        // retained and not released
  std::atomic<int> devices{1};         // all but the first have no memory, and can reach its
  std::atomic<int> reachable{1};       // what cuDeviceCanAccessPeer answers
  std::atomic<Bytes> shared{0};        // given access to for device 1 as well
  std::atomic<bool> registers{true};   // host memory that the process has made
  std::atomic<int> registered{0};      // pieces of it
  std::atomic<bool> stale{false};      // what is mapped already is refused to device 1
  std::atomic<int> advice{0};          // of the last cuMemAdvise, and the kind of its location
  std::atomic<int> advice_location{0};

  std::atomic<std::int64_t> calls{0};    // of all functions, of any thread; none asked again
  std::atomic<std::int64_t> fail_at{0};  // the one that answers UNKNOWN; 0: none
  std::atomic<bool> for_good{false};     // and so do all after it

  // Of the calling thread: the context on top, its number of contexts, its capture mode.
  void* (*current)() = nullptr;
  int (*depth)() = nullptr;
  int (*capture_mode)() = nullptr;
  void (*push)(void* context) = nullptr;
  void (*pop)() = nullptr;
  HostDriver* (*gpu)() = nullptr;  // behind it
};

}  // namespace penstock::driver::cuda

// The library's only exported symbol beside cuGetProcAddress_v2.
extern "C" __attribute__((visibility("default"))) penstock::driver::cuda::EmulatedCuda*
penstock_emulated_cuda();
