// SPDX-License-Identifier: Apache-2.0
// The recording of what a program does on one device, as it lies in a file: one header, then
// records of equal size, little-endian.  A file may end within a record, or between a piece of work
// and its touches, where the program was killed; what is before that counts.
//
// Blocks, streams and functions are small numbers: blocks by their making and never used again,
// streams and functions by their first appearance.  Times are nanoseconds since the recording began
// and never fall; they are those of the calling thread, when the work is about to be given.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/units.hpp"

namespace penstock::engine {

enum class WorkOp : std::uint8_t {
  kAllocate = 1,  // number: the block; at: time; value: bytes
  kFree = 2,      // number: the block; at: time
  kWork = 3,      // number: how many touches follow; at: time; value: function | stream << 32
  kTouch = 4,     // number: the block; at: offset; value: bytes from there
  kPin = 5,       // number: the block, which from here on must stay; at: time
  kUnpin = 6,
};

// Of work: it may touch more than was seen.  Of a touch: it may write.
inline constexpr std::uint8_t kWorkOpaque = 1;
inline constexpr std::uint8_t kTouchWritten = 1;

// What a piece of work is; as PENSTOCK_WORK_* of interpose.h.
enum class WorkKind : std::uint16_t { kKernel = 0, kCopy = 1, kFill = 2, kGraph = 3, kValue = 4 };

struct WorkRecord {
  WorkOp op = WorkOp::kAllocate;
  std::uint8_t flags = 0;
  WorkKind kind = WorkKind::kKernel;  // of work
  std::uint32_t number = 0;
  std::uint64_t at = 0;
  std::uint64_t value = 0;
};
static_assert(sizeof(WorkRecord) == 24);

struct WorkTraceHeader {
  static constexpr std::array<char, 8> kMagic = {'P', 'N', 'S', 'T', 'W', 'O', 'R', 'K'};
  static constexpr std::uint32_t kVersion = 1;

  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t header_bytes = 64;
  std::uint32_t record_bytes = sizeof(WorkRecord);
  std::int32_t device = 0;  // its ordinal in the process
  std::uint32_t process = 0;
  std::uint32_t reserved = 0;
  std::uint64_t budget = 0;        // of device memory that the program ran under
  std::uint64_t device_bytes = 0;  // of the device
  std::uint64_t unix_ns = 0;       // when the recording began
  std::uint64_t more = 0;
};
static_assert(sizeof(WorkTraceHeader) == 64);
static_assert(std::endian::native == std::endian::little, "records go to the file as they are");

}  // namespace penstock::engine
