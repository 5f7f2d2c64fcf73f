// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of the C API hold, and how a Status leaves the library.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "driver/driver.hpp"
#include "driver/host_driver.hpp"
#include "engine/allocator.hpp"
#include "engine/pager.hpp"
#include "penstock/penstock.h"

struct penstock_device {
  std::unique_ptr<penstock::driver::Driver> driver;
  penstock::driver::HostDriver* host = nullptr;  // the same object when it is the emulated GPU
};

struct penstock_allocator {
  std::shared_ptr<penstock::engine::Allocator> allocator;
};

struct penstock_pager {
  std::unique_ptr<penstock::engine::Pager> pager;
};

namespace penstock::api {

// Remember the message for penstock_last_error() and return the code.
penstock_status leave(const Status& status);

// What a caller wants of the allocator; 0 leaves a default.
Result<engine::AllocatorOptions> from_c(const penstock_allocator_options& from);

// No exception crosses the C API: the standard library's become statuses.
template <class Function>
penstock_status guard(Function&& function) {
  try {
    return leave(function());
  } catch (const std::bad_alloc&) {
    return leave(Status(Code::kHostOutOfMemory, "out of host memory for Penstock's own tables"));
  } catch (const std::exception& error) {
    return leave(Status(Code::kInternal, std::string("internal error: ") + error.what()));
  }
}

// Structs begin with their size: read what the caller has, write no more than it has.
template <class T>
T read_struct(const T* from) {
  T value{};
  if (from != nullptr) {
    std::memcpy(&value, from, std::min<std::size_t>(sizeof(T), from->struct_size));
  }
  return value;
}

template <class T>
Status write_struct(T value, T* to) {
  if (to == nullptr || to->struct_size < sizeof(std::uint64_t)) {
    return Status(Code::kInvalidArgument, "a struct without its struct_size");
  }
  value.struct_size = std::min<std::uint64_t>(sizeof(T), to->struct_size);
  std::memcpy(to, &value, value.struct_size);
  return {};
}

}  // namespace penstock::api
