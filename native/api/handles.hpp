// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of the C API hold, and how a Status leaves the library.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>

#include "driver/driver.hpp"
#include "driver/emulated/driver.hpp"
#include "engine/allocation/allocator.hpp"
#include "engine/paging/pager.hpp"
#include "engine/paging/shared_budget.hpp"
#include "penstock/penstock.h"

// Each handle leads to its object by `*`, and has the name of that for messages.
struct penstock_device {
  static constexpr const char* kName = "the device";
  std::unique_ptr<penstock::driver::Driver> driver;
  penstock::driver::HostDriver* host = nullptr;  // the same object when it is the emulated GPU
  auto& operator*() const { return *driver; }
};

struct penstock_allocator {
  static constexpr const char* kName = "the allocator";
  std::shared_ptr<penstock::engine::Allocator> allocator;
  auto& operator*() const { return *allocator; }
};

struct penstock_pager {
  static constexpr const char* kName = "the pager";
  std::unique_ptr<penstock::engine::Pager> pager;
  auto& operator*() const { return *pager; }
};

struct penstock_budget {
  static constexpr const char* kName = "the budget";
  penstock::engine::SharedBudget budget;
  auto& operator*() { return budget; }
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
    return leave(Status(Code::kInternal, "internal error: ", error.what()));
  }
}

// Microseconds of modelled calls: at most what a clock in nanoseconds can add up.
inline Status check_costs(std::initializer_list<double> costs) {
  for (const double us : costs) {
    if (!(us >= 0 && us <= 1e9)) return invalid("a cost of ", us, " us: from 0 to 1e9");
  }
  return {};
}

inline Status missing(const char* what) { return invalid(what, " is null"); }

// The body of a function about one object: what `function` makes of it.
template <class Handle, class Function>
penstock_status with(Handle* handle, Function&& function) {
  return guard([&]() -> Status {
    if (handle == nullptr) return missing(Handle::kName);
    if constexpr (std::is_void_v<decltype(function(**handle))>) {
      function(**handle);
      return {};
    } else {
      return function(**handle);
    }
  });
}

// A function that is one expression: its name and the object's, what is made of `it`, and the
// other parameters.
#define PENSTOCK_FORWARD(function, handle, made_of_it, ...)             \
  penstock_status function(handle* object __VA_OPT__(, ) __VA_ARGS__) { \
    return with(object, [&](auto& it) { return made_of_it; });          \
  }

// The body of a function that makes an object on a device: `function` makes it.
template <class Handle, class Function>
penstock_status make(penstock_device* device, Handle** handle, Function&& function) {
  return with(device, [&](driver::Driver& driver) -> Status {
    if (handle == nullptr) return missing(Handle::kName);
    PENSTOCK_ASSIGN(auto made, function(driver));
    *handle = new Handle{std::move(made)};
    return {};
  });
}

// The enumerator of this number, of those that count from 0 to `last`.
template <class Enum>
Result<Enum> to_enum(const char* name, int32_t value, Enum last) {
  if (value >= 0 && value <= static_cast<int32_t>(last)) return static_cast<Enum>(value);
  return invalid("there is no ", name, " ", value);
}

inline driver::Stream to_stream(uint64_t stream) { return driver::Stream{stream}; }

// The fields of these names, which both structs have.
#define PENSTOCK_COPY_FIELDS(to, from, ...) \
  PENSTOCK_PASS(PENSTOCK_COPY_FIELD(to, from, __VA_ARGS__))
#define PENSTOCK_COPY_FIELD(to, from, field, ...) \
  (to).field = (from).field;                      \
  __VA_OPT__(PENSTOCK_COPY_MORE PENSTOCK_LATER(to, from, __VA_ARGS__))
#define PENSTOCK_COPY_MORE() PENSTOCK_COPY_FIELD
#define PENSTOCK_LATER ()
// Each pass expands one more field.
#define PENSTOCK_PASS(...) PENSTOCK_PASSES(PENSTOCK_PASSES(PENSTOCK_PASSES(__VA_ARGS__)))
#define PENSTOCK_PASSES(...) PENSTOCK_PASS_4(PENSTOCK_PASS_4(PENSTOCK_PASS_4(__VA_ARGS__)))
#define PENSTOCK_PASS_4(...) PENSTOCK_PASS_1(PENSTOCK_PASS_1(PENSTOCK_PASS_1(__VA_ARGS__)))
#define PENSTOCK_PASS_1(...) __VA_ARGS__

template <class To>
void copy_stalls(To& to, const engine::StallSummary& from) {
  to.profiled_iterations = from.iterations;
  to.profiled_ms = from.total_ms;
  to.stall_ms = from.stall_ms;
  to.largest_stall_ms = from.largest_ms;
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
    return invalid("a struct without its struct_size");
  }
  value.struct_size = std::min<std::uint64_t>(sizeof(T), to->struct_size);
  std::memcpy(to, &value, value.struct_size);
  return {};
}

}  // namespace penstock::api

// Whoever includes this defines functions of the C API, whose headers give them their linkage.
using namespace penstock;       // NOLINT(google-build-using-namespace)
using namespace penstock::api;  // NOLINT(google-build-using-namespace)
