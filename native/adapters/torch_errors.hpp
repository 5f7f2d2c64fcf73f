// SPDX-License-Identifier: Apache-2.0
// Errors that torch's callers can catch.  torch.OutOfMemoryError is what a c10::OutOfMemoryError
// becomes in Python; it is made here by the constructors that the loaded libraries of torch export,
// looked up by name, so that Penstock needs no header of torch and no build for each version.
// Where they are missing, std::runtime_error arrives as RuntimeError, whose text the usual searches
// for a batch size recognise.
//
// Thread rule: find_torch_errors() once, before anything is raised; then any thread.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::adapters {

enum class ErrorKind : std::int32_t {
  kRuntimeError = 0,
  kFromBase = 1,  // torch 2.11 exports the base's constructor, and the type's tables
  kOwn = 2,       // torch 2.13 exports the type's own
};

// Look for torch's libraries among those that are loaded.
ErrorKind find_torch_errors();
ErrorKind error_kind();

[[noreturn]] void raise_out_of_memory(const std::string& text);
[[noreturn]] void raise_runtime_error(const std::string& text);

}  // namespace penstock::adapters
