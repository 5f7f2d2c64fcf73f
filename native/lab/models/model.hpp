// SPDX-License-Identifier: Apache-2.0
// What the models of PyTorch's own allocators have in common: the interface that a replay drives,
// what they ask of a device, and the sizes that PyTorch 2.11 documents and its statistics show.
//
// The models say how much memory PyTorch would reserve for a sequence of calls.  They are written
// from its behaviour and checked against runs of the real thing (docs/replay.md has the errors).
// Pure: no driver, no locks, no clock.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.hpp"
#include "lab/machines/metadata_driver.hpp"

namespace penstock::policy::baseline {

inline constexpr Bytes kSmallest = 512;             // sizes are multiples of it
inline constexpr Bytes kSmallRequest = kMiB;        // up to here: the small pool
inline constexpr Bytes kSmallSegment = 2 * kMiB;    // also what larger segments are multiples of
inline constexpr Bytes kMiddleRequest = 10 * kMiB;  // below: segments of a fixed size
inline constexpr Bytes kMiddleSegment = 20 * kMiB;
inline constexpr Bytes kLargestLeftover = kMiB;  // what is not worth splitting off

using Handle = std::uint32_t;  // a block that was handed out

constexpr Bytes round_request(Bytes bytes) {
  return bytes < kSmallest ? kSmallest : align_up(bytes, kSmallest);
}

class Model {
 public:
  virtual ~Model() = default;
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Nothing where the capacity does not suffice, after cached memory was given back.
  virtual std::optional<Handle> allocate(Bytes bytes, std::uint32_t stream) = 0;
  virtual void free(Handle block) = 0;

  [[nodiscard]] Bytes reserved() const { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const { return peak_; }
  [[nodiscard]] const driver::DriverCalls& calls() const { return calls_; }

 protected:
  void reserve(Bytes bytes) {
    reserved_ += bytes;
    if (reserved_ > peak_) peak_ = reserved_;
  }
  void unreserve(Bytes bytes) { reserved_ -= bytes; }

  // A cudaMalloc counts as one chunk that is created, mapped and made accessible, a cudaFree as an
  // unmap.
  driver::DriverCalls calls_;

 private:
  Bytes reserved_ = 0;
  Bytes peak_ = 0;
};

}  // namespace penstock::policy::baseline
