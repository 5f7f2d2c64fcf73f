// SPDX-License-Identifier: Apache-2.0
// A lossless code of 12 bits for bf16 values.  Weights use few of the 256 exponents: a value is its
// sign and mantissa, 8 bits, and the place of its exponent among the 16 commonest of the piece, 4
// bits.  Values with another exponent are escapes, listed with their exponents and applied behind
// the others.  Every piece of memory is coded by itself, so pieces decode in any order.
//
// The code, all of it little-endian, each part beginning at a multiple of 16:
//   Header
//   bytes    of n: sign (bit 7) and mantissa
//   indices  of n, two a byte, the even one in the low half
//   starts   of tiles + 1, 32 bits: where the escapes of each tile of 8,192 values begin
//   escapes  32 bits: the place in the tile (bits 0 to 15), the exponent (16 to 23)
// native/driver/kernels/decode.cu reads the same.
//
// Pure: data in, data out.  encode() trusts its Survey; what comes back may be anybody's, and
// decode() reads and writes within its two spans whatever it holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::codec {

inline constexpr std::size_t kExponents = 16;
inline constexpr Bytes kTile = 8192;      // values; a place in one fits into 16 bits
inline constexpr Bytes kAlignment = 128;  // of a code's size, so that codes can follow each other

struct Header {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::uint64_t raw_bytes = 0;
  std::uint64_t digest = 0;  // of the raw bytes
  std::uint64_t escapes = 0;
  std::array<std::uint8_t, kExponents> exponents{};
  std::array<std::uint8_t, 16> reserved{};
};
static_assert(sizeof(Header) == 64 && offsetof(Header, exponents) == 32);

// What decides a code's layout: where its parts begin, and its size.
struct Shape {
  Bytes raw_bytes = 0;
  std::uint64_t escapes = 0;

  [[nodiscard]] Bytes values() const { return raw_bytes / 2; }
  [[nodiscard]] Bytes tiles() const { return divide_up(values(), kTile); }
  [[nodiscard]] static constexpr Bytes bytes_at() { return sizeof(Header); }
  [[nodiscard]] Bytes indices_at() const { return bytes_at() + align_up(values(), 16); }
  [[nodiscard]] Bytes starts_at() const {
    return indices_at() + align_up(divide_up(values(), 2), 16);
  }
  [[nodiscard]] Bytes escapes_at() const { return starts_at() + align_up(4 * (tiles() + 1), 16); }
  [[nodiscard]] Bytes size() const { return align_up(escapes_at() + 4 * escapes, kAlignment); }
};

// What encode() needs to know of a piece beforehand.
struct Survey {
  Shape shape;
  std::array<std::uint8_t, kExponents> exponents{};
};

// Of an even number of bytes.
[[nodiscard]] Survey survey(std::span<const std::byte> raw);
// Writes survey.shape.size() bytes.
void encode(const Survey& survey, std::span<const std::byte> raw, std::span<std::byte> code);
// kInvalidArgument where the code is truncated, forged or damaged, or of another size than `raw`,
// which holds anything then.
[[nodiscard]] Status decode(std::span<const std::byte> code, std::span<std::byte> raw);
// Whether it decodes to what it was made from, by the digest; needs no memory.
[[nodiscard]] Status check(std::span<const std::byte> code, Bytes raw_bytes);
// Whether that is what it decodes to; needs no memory.
[[nodiscard]] Status verify(std::span<const std::byte> code, std::span<const std::byte> raw);

}  // namespace penstock::codec
