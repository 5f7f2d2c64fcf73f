// SPDX-License-Identifier: Apache-2.0
// Where the host keeps a piece of a page, and whether as it is or encoded.  A page without parts is
// one piece, as it is.  What lies between parts is padding, and nobody's.
#pragma once

#include <cstddef>
#include <span>

#include "base/units.hpp"
#include "codec/bf16.hpp"

namespace penstock::engine {

struct Part {
  Bytes offset = 0;  // in the page
  Bytes bytes = 0;
  std::byte* host = nullptr;
  const void* slab =
      nullptr;           // the page-locked allocation that it lies in; no copy crosses its end
  codec::Shape shape{};  // of the code; of nothing where it is as it is

  [[nodiscard]] bool encoded() const { return shape.raw_bytes != 0; }
  [[nodiscard]] std::span<const std::byte> code() const { return {host, shape.size()}; }
  [[nodiscard]] Bytes travels() const { return encoded() ? shape.size() : bytes; }
};

inline Bytes travels(std::span<const Part> parts) {
  Bytes bytes = 0;
  for (const Part& part : parts) bytes += part.travels();
  return bytes;
}

}  // namespace penstock::engine
