// SPDX-License-Identifier: Apache-2.0
#include "driver/cuda/symbols.hpp"

#include <dlfcn.h>

namespace penstock::driver::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

void* find(void* library, const char* name, int version, const char* exported) {
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  int status = 0;
  const bool answered =
      get != nullptr && get(name, &found, version, kProcAddressLegacyStream, &status) == kSuccess;
  return answered && found != nullptr ? found : dlsym(library, exported);
}

// Under `penstock run` a proxy stands in front of the driver (native/preload).  What Penstock
// itself asks of the driver is not the program's, and goes to the one behind it.
void* behind_proxy(void* library) {
  using RealLibrary = void* (*)();
  const auto real = reinterpret_cast<RealLibrary>(dlsym(library, "penstock_proxy_real_library"));
  return real != nullptr ? real() : library;
}

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

Status check_version(const Symbols& symbols) {
  int version = 0;
  if (symbols.cuDriverGetVersion.function == nullptr ||
      symbols.cuDriverGetVersion(&version) != kSuccess) {
    return Status(Code::kNoDevice, kLibrary, " does not tell its version; is it NVIDIA's driver?");
  }
  if (version >= kMinimumVersion) return {};
  return Status(Code::kUnsupported, "the NVIDIA driver supports CUDA ", version_text(version), "; ",
                version_text(kMinimumVersion),
                " (driver 535) or later is needed: update the driver");
}

}  // namespace

Result<Symbols> load_symbols() {
  // Never closed: its threads may outlive every driver object, and the framework uses it as well.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kNoDevice, "no NVIDIA driver: ", dlerror(),
                  "; install the driver, or choose the emulated GPU");
  }
  library = behind_proxy(library);
  Symbols symbols;
  const char* missing = nullptr;
#define PENSTOCK_CUDA(name, suffix, version, parameters)                                   \
  symbols.name.function =                                                                  \
      reinterpret_cast<Error(*) parameters>(find(library, #name, version, #name #suffix)); \
  if (symbols.name.function == nullptr) missing = #name;
#include "driver/cuda/symbols.def"
#undef PENSTOCK_CUDA
  PENSTOCK_TRY(check_version(symbols));
  if (missing == nullptr) return symbols;
  return Status(Code::kUnsupported, kLibrary, " has no ", missing, "; update the NVIDIA driver");
}

}  // namespace penstock::driver::cuda
