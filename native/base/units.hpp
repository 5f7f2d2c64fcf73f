// SPDX-License-Identifier: Apache-2.0
// Units and the few scalar types that every layer shares.  Addresses and byte counts are 64-bit
// even where a pointer would do, because a device address must never be dereferenced by accident.
#pragma once

#include <cstdint>

namespace penstock {

using Bytes = std::uint64_t;
using Addr = std::uint64_t;  // an address in the device's (unified) address space

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;
inline constexpr Bytes kTiB = 1024 * kGiB;

constexpr Bytes align_up(Bytes value, Bytes multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr Bytes align_down(Bytes value, Bytes multiple) { return value / multiple * multiple; }

constexpr Bytes divide_up(Bytes value, Bytes by) { return (value + by - 1) / by; }

}  // namespace penstock
