// SPDX-License-Identifier: Apache-2.0
#include "adapters/torch_errors.hpp"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <typeinfo>

namespace penstock::adapters {
namespace {

// As c10 declares it; passed by value.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

using Constructor = void (*)(void* self, SourceLocation where, std::string text);
using Destructor = void (*)(void*);
using Allocate = void* (*)(std::size_t);
using Throw = void (*)(void*, std::type_info*, Destructor);

// More than a c10::Error takes (about 150 bytes up to torch 2.15).
constexpr std::size_t kObjectBytes = 1024;
// A table of virtual functions begins with two words that no object points at.
constexpr std::size_t kTableHead = 2;

struct TorchErrors {
  ErrorKind kind = ErrorKind::kRuntimeError;
  Constructor construct = nullptr;
  void** table = nullptr;  // where an object's hidden pointer must point, for kFromBase
  std::type_info* type = nullptr;
  // Those of the C++ runtime that torch uses: ours is linked in, and an exception's bookkeeping
  // (how many are under way) must be done by the one that will catch it.
  Allocate allocate = nullptr;
  Throw raise = nullptr;
};

constinit TorchErrors exported;

void* find(const char* symbol) {
  for (const char* name : {"libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so",
                           "libstdc++.so.6"}) {
    void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const address = dlsym(library, symbol);
    dlclose(library);  // it stays: this only gives back what RTLD_NOLOAD counted
    if (address != nullptr) return address;
  }
  return nullptr;
}

// The first virtual function of every exception is its destructor.
void destroy(void* object) {
  void** const table = *static_cast<void***>(object);
  reinterpret_cast<Destructor>(table[0])(object);
}

}  // namespace

ErrorKind find_torch_errors() {
  TorchErrors errors;
  errors.allocate = reinterpret_cast<Allocate>(find("__cxa_allocate_exception"));
  errors.raise = reinterpret_cast<Throw>(find("__cxa_throw"));
  errors.type = static_cast<std::type_info*>(find("_ZTIN3c1016OutOfMemoryErrorE"));
  errors.construct = reinterpret_cast<Constructor>(
      find("_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_"
           "traitsIcESaIcEEE"));
  if (errors.construct != nullptr) {
    errors.kind = ErrorKind::kOwn;
  } else {
    errors.construct = reinterpret_cast<Constructor>(
        find("_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIc"
             "EEE"));
    auto* const table = static_cast<void**>(find("_ZTVN3c1016OutOfMemoryErrorE"));
    if (table != nullptr && errors.construct != nullptr) {
      errors.kind = ErrorKind::kFromBase;
      errors.table = table + kTableHead;
    }
  }
  if (errors.allocate == nullptr || errors.raise == nullptr || errors.type == nullptr) {
    errors.kind = ErrorKind::kRuntimeError;
  }
  exported = errors;
  return exported.kind;
}

ErrorKind error_kind() { return exported.kind; }

void raise_out_of_memory(const std::string& text) {
  if (exported.kind != ErrorKind::kRuntimeError) {
    void* const object = exported.allocate(kObjectBytes);
    std::memset(object, 0, kObjectBytes);
    exported.construct(object, {"penstock_torch_alloc", "torch_allocator.cpp", 0}, text);
    // The derived type adds no member: the table is all that tells it from its base.
    if (exported.table != nullptr) *static_cast<void***>(object) = exported.table;
    exported.raise(object, exported.type, destroy);
  }
  raise_runtime_error(text);
}

void raise_runtime_error(const std::string& text) { throw std::runtime_error(text); }

}  // namespace penstock::adapters
