// SPDX-License-Identifier: Apache-2.0
// How failure travels below the C API: a Status with a code and one line that names the numbers,
// or a Result<T>.  Nothing here throws and nothing exits; the C API turns codes into its own.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <variant>

#include "base/text.hpp"

namespace penstock {

enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,
  kOutOfMemory = 2,      // the device, or the budget, cannot hold it
  kHostOutOfMemory = 3,  // host memory, or the page-lock limit, does not suffice
  kUnsupported = 4,
  kNoDevice = 5,  // no driver, or no such device
  kDriver = 6,    // the driver refused a call that should have worked
  kNotReady = 7,  // an event has not completed yet; not a failure
  kInternal = 8,  // a bug of ours
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  // A message of several pieces, see text().
  template <class First, class Second, class... More>
  Status(Code code, const First& first, const Second& second, const More&... more)
      : code_(code), message_(text(first, second, more...)) {}

  [[nodiscard]] bool ok() const { return code_ == Code::kOk; }
  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// Of what makes no sense.
template <class... Pieces>
Status invalid(const Pieces&... pieces) {
  return {Code::kInvalidArgument, text(pieces...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : held_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return held_.index() == 0; }
  [[nodiscard]] T& value() & { return std::get<0>(held_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(held_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(held_)); }
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<1>(held_); }

 private:
  std::variant<T, Status> held_;
};

// Room in a list for so many, so that what follows needs no memory; it grows as push_back() does.
template <class List>
void room_for(List& list, std::size_t size) {
  if (list.capacity() < size) list.reserve(2 * size + 8);
}

// What has to be undone where it fails, for want of host memory as well.
template <class Function>
auto guarded(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception&) {
    return Status{Code::kHostOutOfMemory, "no host memory"};  // short enough to need none itself
  }
}

}  // namespace penstock

// Return early from a function that returns Status or Result<T>.
#define PENSTOCK_TRY(expression)                                                    \
  do {                                                                              \
    if (::penstock::Status penstock_status_ = (expression); !penstock_status_.ok()) \
      return penstock_status_;                                                      \
  } while (false)

// PENSTOCK_ASSIGN(auto chunk, driver.create_chunk(...)): bind the value or return the failure.
#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)
#define PENSTOCK_ASSIGN(target, expression) \
  PENSTOCK_ASSIGN_IMPL(PENSTOCK_CONCAT(penstock_result_, __LINE__), target, expression)
#define PENSTOCK_ASSIGN_IMPL(name, target, expression) \
  auto name = (expression);                            \
  if (!name.ok()) return name.status();                \
  target = std::move(name).value()
