// SPDX-License-Identifier: Apache-2.0
// Which call of the emulated libcuda.so.1 is made to fail.  While a thread waits it asks the same
// again and again, as often as time goes; how often that is says nothing, and is not counted.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "driver/cuda/abi.hpp"
#include "emulated_cuda.hpp"

namespace penstock::driver::cuda {

// Asking whether an event has happened, and what each call is made between.
constexpr bool asks(std::string_view name) {
  return name == "cuEventQuery" || name == "cuThreadExchangeStreamCaptureMode" ||
         name == "cuCtxGetCurrent" || name == "cuCtxPushCurrent" || name == "cuCtxPopCurrent";
}

// What a question is about: an event, or the mode that a thread leaves.
inline std::uint64_t about() { return 0; }
template <class First, class... More>
std::uint64_t about(First first, More...) {
  if constexpr (std::is_same_v<First, int*>) {
    return static_cast<std::uint64_t>(*first);
  } else if constexpr (std::is_same_v<First, EventPtr>) {
    return reinterpret_cast<std::uint64_t>(first);
  } else {
    return 0;
  }
}

struct Question {
  const void* function;
  std::uint64_t about;
};

// Whether the thread has asked this since it last did anything.
inline bool asked_again(bool asks, const Question& question) {
  static thread_local Question asked[16];  // without a destructor: threads end before drivers do
  static thread_local std::size_t count;
  if (!asks) count = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (asked[i].function == question.function && asked[i].about == question.about) return true;
  }
  if (asks && count < std::size(asked)) asked[count++] = question;
  return false;
}

inline bool fails(EmulatedCuda& dials, bool asks, const Question& question) {
  const bool again = asked_again(asks, question);
  const std::int64_t now = again ? dials.calls.load() : ++dials.calls;
  const std::int64_t at = dials.fail_at;
  return at > 0 && (dials.for_good ? now >= at : now == at && !again);
}

}  // namespace penstock::driver::cuda
