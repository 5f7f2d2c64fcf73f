// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1, loaded at run time: one pointer a function, all of them there or none.
// Thread rule: constant once loaded.
#pragma once

#include "base/status.hpp"
#include "driver/cuda/abi.hpp"

namespace penstock::driver::cuda {

// CUDA 12.2 brought the forms of cuMemAdvise and cuMemPrefetchAsync that name a location.
inline constexpr int kMinimumVersion = 12020;

// An entry point, with its name for messages.
template <class Function>
struct Symbol;
template <class... Parameters>
struct Symbol<Error(Parameters...)> {
  const char* name;
  Error (*function)(Parameters...) = nullptr;

  Error operator()(Parameters... arguments) const { return function(arguments...); }
};

struct Symbols {
#define PENSTOCK_CUDA(name, suffix, version, parameters) Symbol<Error parameters> name{#name};
#include "driver/cuda/symbols.def"
#undef PENSTOCK_CUDA
};

// kNoDevice where there is no driver, kUnsupported where it is too old.
Result<Symbols> load_symbols();

}  // namespace penstock::driver::cuda
