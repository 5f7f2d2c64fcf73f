// SPDX-License-Identifier: Apache-2.0
// A lossless code of 11 or 12 bits for bf16 values.  Weights use few of the 256 exponents: a value
// is its sign and mantissa, 8 bits, and the place of its exponent among the 8 or 16 commonest of
// the piece, 3 or 4 bits, whichever makes the smaller code.  Values with another exponent are
// escapes, listed with their exponents and applied behind the others.  Every piece of memory is
// coded by itself, so pieces decode in any order.
//
// The code, all of it little-endian, each part beginning at a multiple of 16:
//   Header
//   bytes      of n: sign (bit 7) and mantissa
//   pairs      bits 0 and 1 of places, 256 bytes for each run of 1,024 values
//   planes     bit 2 of places, 128 bytes for each run; behind those of all runs bit 3, if there is
//   starts     of tiles + 1, 32 bits: where the escapes of each tile of 8,192 values begin
//   positions  of escapes in their tile, 16 bits
//   others     the escapes' exponents, 8 bits
// A run is 32 lanes of a warp, of which lane t has the values 256 g + 8 t + k (g < 4, k < 8).  Its
// bits lie in 32-bit words, 4 for each k: bit 4 k + g of word t of a plane, and bits 4 k + 2 (g %
// 2) and the next of word 32 (g / 2) + t of the pairs.  So a mask leaves eight places, one in each
// four bits, and a lane's values are neighbours in memory. native/driver/kernels/decode.cu reads
// the same.
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

inline constexpr std::size_t kExponents = 16;  // at the most
inline constexpr Bytes kTile = 8192;           // values; a position in one fits into 16 bits
inline constexpr Bytes kRun = 1024;            // values
inline constexpr Bytes kAlignment = 128;  // of a code's size, so that codes can follow each other

struct Header {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::uint64_t raw_bytes = 0;
  std::uint64_t digest = 0;  // of the raw bytes
  std::uint64_t escapes = 0;
  std::array<std::uint8_t, kExponents> exponents{};
  std::uint8_t width = 0;  // of a place, in bits
  std::array<std::uint8_t, 15> reserved{};
};
static_assert(sizeof(Header) == 64 && offsetof(Header, exponents) == 32);

// What decides a code's layout: where its parts begin, and its size.
struct Shape {
  Bytes raw_bytes = 0;
  std::uint64_t escapes = 0;
  std::uint32_t width = 4;  // of a place: 3 or 4 bits

  [[nodiscard]] Bytes values() const { return raw_bytes / 2; }
  [[nodiscard]] Bytes runs() const { return divide_up(values(), kRun); }
  [[nodiscard]] Bytes tiles() const { return divide_up(values(), kTile); }
  [[nodiscard]] static constexpr Bytes bytes_at() { return sizeof(Header); }
  [[nodiscard]] Bytes pairs_at() const { return bytes_at() + align_up(values(), 16); }
  [[nodiscard]] Bytes planes_at() const { return pairs_at() + kRun / 4 * runs(); }
  [[nodiscard]] Bytes starts_at() const { return planes_at() + kRun / 8 * runs() * (width - 2); }
  [[nodiscard]] Bytes positions_at() const { return starts_at() + align_up(4 * (tiles() + 1), 16); }
  [[nodiscard]] Bytes others_at() const { return positions_at() + align_up(2 * escapes, 16); }
  [[nodiscard]] Bytes size() const { return align_up(others_at() + escapes, kAlignment); }
};

// What encode() needs to know of a piece beforehand.
struct Survey {
  Shape shape;
  std::array<std::uint8_t, kExponents> exponents{};

  [[nodiscard]] Header header() const;  // without a digest
};

using Counts = std::array<std::uint32_t, 256>;  // of values, by their exponents
// Of an even number of bytes, below 8 GiB.
[[nodiscard]] Counts counts_of(std::span<const std::byte> raw);
// Places have `width` bits, or, of 3 and 4, as many as make the smaller code.
[[nodiscard]] Survey survey(Bytes raw_bytes, const Counts& counts, std::uint32_t width = 0);
// Writes survey.shape.size() bytes, but not the digest of `raw`, without which nothing decodes.
void encode(const Survey& survey, std::span<const std::byte> raw, std::span<std::byte> code);
// Gives what encode() made, here or on a device, its digest, where it stands for `raw`; otherwise
// kInvalidArgument.  Needs no memory.
[[nodiscard]] Status seal(std::span<std::byte> code, std::span<const std::byte> raw);
// kInvalidArgument where the code is truncated, forged or damaged, or of another size than `raw`,
// which holds anything then.
[[nodiscard]] Status decode(std::span<const std::byte> code, std::span<std::byte> raw);
// Whether it decodes to what it was made from, by the digest; needs no memory.
[[nodiscard]] Status check(std::span<const std::byte> code, Bytes raw_bytes);
// Whether that is what it decodes to; needs no memory.
[[nodiscard]] Status verify(std::span<const std::byte> code, std::span<const std::byte> raw);

}  // namespace penstock::codec
