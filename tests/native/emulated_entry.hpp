// SPDX-License-Identifier: Apache-2.0
// The way into the emulated libcuda.so.1 for programs that run in processes of their own.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string_view>

#include "penstock/interpose.h"

// In a child process, which has nobody to tell but by its exit code.
#define MUST(condition) \
  if (!(condition)) _exit(100 + __LINE__ % 100)

namespace penstock::testing {

using GetProcAddress = std::int32_t (*)(const char*, void**, std::int32_t, std::uint64_t,
                                        std::int32_t*);
inline GetProcAddress emulated;                    // cuGetProcAddress_v2, once it is loaded
inline constexpr std::uint64_t kLegacyStream = 1;  // the emulated driver wants it said

inline std::int32_t get_device(int* ordinal) {
  *ordinal = 0;
  return 0;
}

// The emulated driver has what Penstock asks of a device; the engine asks for the context's too.
inline std::int32_t get_proc_address(const char* name, void** function, std::int32_t version,
                                     std::uint64_t flags, std::int32_t* status) {
  if (std::string_view(name) != "cuCtxGetDevice") {
    return emulated(name, function, version, flags | kLegacyStream, status);
  }
  *function = reinterpret_cast<void*>(&get_device);
  *status = 0;
  return 0;
}

template <class Function>
Function* call(const char* name, std::int32_t version) {
  void* found = nullptr;
  std::int32_t status = 0;
  MUST(emulated(name, &found, version, kLegacyStream, &status) == 0 && status == 0);
  return reinterpret_cast<Function*>(found);
}

// The device's primary context, once the driver is there.
inline void* primary_context() {
  void* context = nullptr;
  MUST(call<std::int32_t(unsigned)>("cuInit", 2000)(0) == 0);
  MUST(call<std::int32_t(void**, int)>("cuDevicePrimaryCtxRetain", 7000)(&context, 0) == 0);
  return context;
}

inline penstock_real_driver real_driver(void* library) {
  penstock_real_driver real{};
  real.struct_size = sizeof(real);
  real.version = PENSTOCK_INTERPOSE_VERSION;
  real.library = library;
  real.get_proc_address = get_proc_address;
  return real;
}

// A kernel that touches one piece of memory.
inline penstock_work kernel_work(void* context, penstock_touch& touch) {
  penstock_work work{};
  work.struct_size = sizeof(work);
  work.kind = PENSTOCK_WORK_KERNEL;
  work.function = 0xabcd;
  work.context = context;
  work.touches = &touch;
  work.count = 1;
  return work;
}

}  // namespace penstock::testing
