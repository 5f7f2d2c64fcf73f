// SPDX-License-Identifier: Apache-2.0
// The way into the emulated libcuda.so.1 for programs that run in processes of their own, each of
// which is a test case that is skipped unless it is asked for.
#pragma once

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "doctest/doctest.h"
#include "penstock/interpose.h"
#include "penstock/torch.h"

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

// Whether libcuda.so.1 is the emulated one, and no proxy is before it; else the test says so.
inline bool is_emulated_alone() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr && dlsym(library, "penstock_emulated_cuda") != nullptr &&
      dlsym(library, PENSTOCK_PROXY_COUNTERS) == nullptr) {
    return true;
  }
  MESSAGE("the driver is not the emulated one alone: nothing tested");
  return false;
}

struct Child {
  pid_t process = 0;
  int code = -1;  // that it exited with; -1: a signal ended it
};

// Run a test case of this program by itself.
inline Child run_case(const std::string& name) {
  const std::string option = "--test-case=" + name;
  Child child{.process = fork()};
  if (child.process == 0) {
    execl("/proc/self/exe", "native_tests", option.c_str(), "--no-skip",
          static_cast<char*>(nullptr));
    _exit(99);
  }
  int status = -1;
  REQUIRE(child.process > 0);
  REQUIRE(waitpid(child.process, &status, 0) == child.process);
  if (WIFEXITED(status)) child.code = WEXITSTATUS(status);
  return child;
}

// The emulated driver's library, from here on called by call().
inline void* load_emulated() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  MUST(library != nullptr);
  emulated = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  return library;
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

struct Interposed {
  void* context = nullptr;
  penstock_interposer* engine = nullptr;
};

// The engine behind the proxy, with a budget in bytes and perhaps a file to record in.
inline Interposed interpose(std::uint64_t gpu_memory, const char* record = nullptr,
                            std::int32_t log_level = PENSTOCK_LOG_ERROR) {
  void* const library = load_emulated();
  Interposed made{.context = primary_context()};
  const penstock_real_driver real = real_driver(library);
  penstock_interpose_options options{};
  options.struct_size = sizeof(options);
  options.gpu_memory = gpu_memory;
  options.log_level = log_level;
  options.record = record;
  MUST(penstock_interpose(&real, &options, &made.engine) == PENSTOCK_OK);
  return made;
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
