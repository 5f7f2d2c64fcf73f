// SPDX-License-Identifier: Apache-2.0
// Decodes bf16 values; the code is described in native/codec/bf16.hpp.  Each 256 threads of a block
// take tile after tile, a warp a run of 1,024 values, and read the next tile while they write one.
// A tile's escapes are read beside its values, and put over them once all of it is in place.
//
// tools/compile_kernels.py makes decode_ptx.hpp from this file.  Whatever the code holds, nothing
// is written outside [out, out + values), nor read outside the code.
typedef unsigned long long u64;

constexpr unsigned kTile = 8192;
constexpr unsigned kGroup = 256;  // threads that share a tile, and values whose bits lie together
constexpr unsigned kEach = 8;     // neighbours that a thread turns at a time
constexpr unsigned kExponentsAt = 32;
constexpr unsigned kBytesAt = 64;

struct Code {
  const unsigned char* bytes;
  const unsigned* pairs;
  const unsigned* planes;
  const unsigned* starts;
  const unsigned short* positions;
  const unsigned char* others;
  u64 values;
  u64 runs;
  unsigned escapes;
  bool wide;  // places of four bits
};

// What a thread reads of a tile.
struct Piece {
  uint2 bytes[4];
  unsigned pairs[2];
  unsigned planes[2];
  unsigned begin;
  unsigned end;
};

__device__ __forceinline__ Piece load(const Code& code, u64 tile, unsigned thread) {
  Piece piece;
  piece.begin = code.starts[tile];
  piece.end = code.starts[tile + 1];
  const u64 run = tile * (kTile / 1024) + thread / 32;
  if (run >= code.runs) return piece;
  const unsigned lane = thread % 32;
#pragma unroll
  for (unsigned g = 0; g < 4; ++g) {
    const u64 at = run * 1024 + g * kGroup + lane * kEach;
    piece.bytes[g] = at < code.values ? *(const uint2*)(code.bytes + at) : make_uint2(0, 0);
  }
  piece.pairs[0] = code.pairs[run * 64 + lane];
  piece.pairs[1] = code.pairs[run * 64 + 32 + lane];
  piece.planes[0] = code.planes[run * 32 + lane];
  piece.planes[1] = code.wide ? code.planes[(code.runs + run) * 32 + lane] : 0;
  return piece;
}

// The exponents of the four places in the lower half of `places`, four bits each.
__device__ __forceinline__ unsigned four(unsigned places, const uint4& table, bool wide) {
  const unsigned low = __byte_perm(table.x, table.y, places & 0x7777);
  if (!wide) return low;
  const unsigned high = __byte_perm(table.z, table.w, places & 0x7777);
  const unsigned which = __byte_perm(0xff00, 0, places >> 3 & 0x1111);  // of each byte, 0 or 0xff
  return (low & ~which) | (high & which);
}

// Four values of their bytes and exponents.
__device__ __forceinline__ uint2 join(unsigned bytes, unsigned exponents) {
  const unsigned upper = (bytes & 0x80808080u) | (exponents >> 1 & 0x7f7f7f7fu);
  const unsigned lower = (bytes & 0x7f7f7f7fu) | (exponents << 7 & 0x80808080u);
  return make_uint2(__byte_perm(lower, upper, 0x5140), __byte_perm(lower, upper, 0x7362));
}

__device__ __forceinline__ void write(unsigned short* out, const Code& code, const Piece& piece,
                                      const uint4& table, u64 tile, unsigned thread) {
  const u64 run = tile * (kTile / 1024) + thread / 32;
#pragma unroll
  for (unsigned g = 0; g < 4; ++g) {
    const u64 at = run * 1024 + g * kGroup + thread % 32 * kEach;
    if (at >= code.values) break;
    const unsigned places = (piece.pairs[g / 2] >> 2 * (g % 2) & 0x33333333u) |
                            (piece.planes[0] >> g & 0x11111111u) << 2 |
                            (piece.planes[1] >> g & 0x11111111u) << 3;
    const uint2 front = join(piece.bytes[g].x, four(places, table, code.wide));
    const uint2 back = join(piece.bytes[g].y, four(places >> 16, table, code.wide));
    unsigned short* const to = out + at;
    if (at + kEach <= code.values) {
      *(uint4*)to = make_uint4(front.x, front.y, back.x, back.y);
    } else {
      const unsigned words[4] = {front.x, front.y, back.x, back.y};
#pragma unroll
      for (unsigned i = 0; i < kEach; ++i) {
        if (at + i < code.values) to[i] = (unsigned short)(words[i / 2] >> 16 * (i % 2));
      }
    }
  }
}

struct Escape {
  unsigned position;  // in the tile; beyond it, of none
  unsigned value;
};

__device__ __forceinline__ Escape escape(const Code& code, u64 tile, unsigned i, unsigned end) {
  if (i >= end) return {kTile, 0};
  const unsigned position = code.positions[i];
  if (position >= kTile || tile * kTile + position >= code.values) return {kTile, 0};
  const unsigned byte = code.bytes[tile * kTile + position];
  return {position, (byte & 0x80) << 8 | (unsigned)code.others[i] << 7 | (byte & 0x7f)};
}

extern "C" __global__ void __launch_bounds__(1024)
    penstock_decode(unsigned short* out, const unsigned char* code, u64 values,
                    const unsigned* pairs, const unsigned* planes, const unsigned* starts,
                    const unsigned short* positions, const unsigned char* others, u64 escapes,
                    unsigned wide) {
  const uint4 table = *(const uint4*)(code + kExponentsAt);
  const Code from{code + kBytesAt,   pairs,    planes, starts,
                  positions,         others,   values, (values + 1023) / 1024,
                  (unsigned)escapes, wide != 0};
  const unsigned thread = threadIdx.x % kGroup;
  const unsigned group = threadIdx.x / kGroup;
  const unsigned groups = blockDim.x / kGroup;
  const u64 step = (u64)gridDim.x * groups;
  const u64 tiles = (values + kTile - 1) / kTile;
  u64 tile = (u64)blockIdx.x * groups + group;
  if (tile >= tiles) return;
  Piece piece = load(from, tile, thread);
  for (; tile < tiles; tile += step) {
    const Piece here = piece;
    if (tile + step < tiles) piece = load(from, tile + step, thread);
    const unsigned end = min(here.end, from.escapes);
    unsigned i = here.begin + thread;
    Escape found = escape(from, tile, i, end);
    write(out, from, here, table, tile, thread);
    if (here.begin >= end) continue;  // for all of the group alike
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroup) : "memory");
    for (; i < end; found = escape(from, tile, i += kGroup, end)) {
      if (found.position < kTile) out[tile * kTile + found.position] = (unsigned short)found.value;
    }
  }
}
