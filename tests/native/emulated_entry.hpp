// SPDX-License-Identifier: Apache-2.0
// The way into the emulated libcuda.so.1 for programs that run in processes of their own.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string_view>

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

}  // namespace penstock::testing
