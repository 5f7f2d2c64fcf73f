// SPDX-License-Identifier: Apache-2.0
// Units and the few scalar types that every layer shares.  Addresses and byte counts are 64-bit
// even where a pointer would do, because a device address must never be dereferenced by accident.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

using Bytes = std::uint64_t;
using Addr = std::uint64_t;  // an address in the device's (unified) address space

// Bytes that begin at an address.
struct Span {
  Addr address = 0;
  Bytes bytes = 0;
};

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;
inline constexpr Bytes kTiB = 1024 * kGiB;

constexpr Bytes align_up(Bytes value, Bytes multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr Bytes align_down(Bytes value, Bytes multiple) { return value / multiple * multiple; }

constexpr Bytes divide_up(Bytes value, Bytes by) { return (value + by - 1) / by; }

// A number that is not negative, as the index or the size of a list.
constexpr std::size_t nth(std::int64_t number) { return static_cast<std::size_t>(number); }

}  // namespace penstock
