// SPDX-License-Identifier: Apache-2.0
// Encodes bf16 values; the code is described in native/codec/bf16.hpp, and is the one that
// codec::encode() makes.  In the order of use, in one stream: survey, for the host, which chooses
// the exponents, then encode, starts and escapes. Blocks have 256 threads; of encode and escapes
// one takes a tile, and each warp a run.
//
// tools/compile_kernels.py makes encode_ptx.hpp from this file.
typedef unsigned long long u64;

constexpr unsigned kTile = 8192;
constexpr unsigned kThreads = 256;
constexpr unsigned kBytesAt = 64;
constexpr unsigned kEach = 8;          // neighbours that a thread turns at a time
constexpr unsigned char kNone = 0x10;  // of an exponent that has no place

struct Header {
  unsigned words[16];
  __device__ unsigned char exponent(unsigned i) const {
    return (unsigned char)(words[8 + i / 4] >> 8 * (i % 4));
  }
  __device__ unsigned width() const { return words[12] & 0xff; }
};

// Eight values from there on; behind the last, whatever has a place.
__device__ __forceinline__ uint4 eight(const unsigned short* raw, u64 at, u64 values,
                                       unsigned char exponent) {
  if (at + kEach <= values) return *(const uint4*)(raw + at);
  unsigned words[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const u64 first = at + 2 * i;
    const unsigned other = (unsigned)exponent << 7;
    words[i] = (first < values ? raw[first] : other) | (first + 1 < values ? raw[first + 1] : other)
                                                           << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The exponents of two words' four values.
__device__ __forceinline__ unsigned exponents_of(unsigned first, unsigned second) {
  return (__byte_perm(first, second, 0x7531) << 1 & 0xfefefefeu) |
         (__byte_perm(first, second, 0x6420) >> 7 & 0x01010101u);
}

__device__ __forceinline__ unsigned sum_of_warp(unsigned count) {
#pragma unroll
  for (unsigned far = 16; far > 0; far /= 2) count += __shfl_xor_sync(~0u, count, far);
  return count;
}

// Adds to the counts of values by exponent.
extern "C" __global__ void penstock_survey(unsigned* counts, const unsigned short* raw,
                                           u64 values) {
  __shared__ unsigned found[kThreads / 32][256];
  for (unsigned i = threadIdx.x; i < kThreads / 32 * 256; i += kThreads) ((unsigned*)found)[i] = 0;
  __syncthreads();
  unsigned* const mine = found[threadIdx.x / 32];
  const u64 step = (u64)gridDim.x * kThreads * kEach;
  for (u64 at = ((u64)blockIdx.x * kThreads + threadIdx.x) * kEach; at < values; at += step) {
    if (at + kEach <= values) {
      const uint4 words = *(const uint4*)(raw + at);
      const unsigned exponents[2] = {exponents_of(words.x, words.y),
                                     exponents_of(words.z, words.w)};
#pragma unroll
      for (unsigned i = 0; i < kEach; ++i) {
        atomicAdd(&mine[exponents[i / 4] >> 8 * (i % 4) & 0xff], 1);
      }
    } else {
      for (u64 i = at; i < values; ++i) atomicAdd(&mine[raw[i] >> 7 & 0xff], 1);
    }
  }
  __syncthreads();
  unsigned sum = 0;
  for (unsigned warp = 0; warp < kThreads / 32; ++warp) sum += found[warp][threadIdx.x];
  if (sum != 0) atomicAdd(&counts[threadIdx.x], sum);
}

__device__ __forceinline__ void make_table(unsigned char* table, const Header& header) {
  table[threadIdx.x] = kNone;
  __syncthreads();
  if (threadIdx.x < 1u << header.width()) table[header.exponent(threadIdx.x)] = threadIdx.x;
  __syncthreads();
}

// The places of four exponents, four bits each, and which of them have none.
__device__ __forceinline__ unsigned places_of(unsigned exponents, const unsigned char* table,
                                              unsigned first, unsigned& escapes) {
  unsigned places = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned place = table[exponents >> 8 * i & 0xff];
    places |= (place & 0xf) << 4 * i;
    escapes |= (place >> 4) << (first + i);
  }
  return places;
}

// All but starts and escapes of a code that is zero before; starts[tile + 1] becomes how many
// escapes there are in the tile.
extern "C" __global__ void penstock_encode(unsigned char* code, const unsigned short* raw,
                                           u64 values, unsigned* pairs, unsigned* planes,
                                           unsigned* starts,
                                           const __grid_constant__ Header header) {
  __shared__ unsigned char table[256];
  make_table(table, header);
  const u64 tile = blockIdx.x;
  const u64 runs = (values + 1023) / 1024;
  const u64 run = tile * (kTile / 1024) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (tile == 0 && threadIdx.x < 16) ((unsigned*)code)[threadIdx.x] = header.words[threadIdx.x];
  if (run >= runs) return;
  unsigned escapes = 0;
  unsigned pair = 0;
  unsigned plane = 0;
  unsigned other_plane = 0;
#pragma unroll 1
  for (unsigned g = 0; g < 4; ++g) {
    const u64 at = run * 1024 + g * 256 + lane * kEach;
    const uint4 words = eight(raw, at, values, header.exponent(0));
    const unsigned bytes[2] = {(__byte_perm(words.x, words.y, 0x7531) & 0x80808080u) |
                                   (__byte_perm(words.x, words.y, 0x6420) & 0x7f7f7f7fu),
                               (__byte_perm(words.z, words.w, 0x7531) & 0x80808080u) |
                                   (__byte_perm(words.z, words.w, 0x6420) & 0x7f7f7f7fu)};
    const unsigned places = places_of(exponents_of(words.x, words.y), table, 8 * g, escapes) |
                            places_of(exponents_of(words.z, words.w), table, 8 * g + 4, escapes)
                                << 16;
    pair = (g % 2 == 0 ? 0 : pair >> 2) | (places & 0x33333333u) << 2;
    if (g % 2 == 1) pairs[run * 64 + 16 * (g - 1) + lane] = pair;
    plane |= (places >> 2 & 0x11111111u) << g;
    other_plane |= (places >> 3 & 0x11111111u) << g;
    unsigned char* const to = code + kBytesAt + at;
    if (at + kEach <= values) {
      *(uint2*)to = make_uint2(bytes[0], bytes[1]);
    } else {
      for (unsigned i = 0; i < kEach && at + i < values; ++i) to[i] = bytes[i / 4] >> 8 * (i % 4);
    }
  }
  planes[run * 32 + lane] = plane;
  if (header.width() > 3) planes[(runs + run) * 32 + lane] = other_plane;
  const unsigned count = sum_of_warp(__popc(escapes));
  if (lane == 0 && count != 0) atomicAdd(&starts[tile + 1], count);
}

// Sums of the counts, by one block.
extern "C" __global__ void penstock_starts(unsigned* starts, u64 tiles) {
  __shared__ unsigned sums[kThreads];
  const u64 each = (tiles + kThreads - 1) / kThreads;
  const u64 first = threadIdx.x * each + 1;
  unsigned sum = 0;
  for (u64 i = first; i < first + each && i <= tiles; ++i) sum += starts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  unsigned before = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) before += sums[i];
  for (u64 i = first; i < first + each && i <= tiles; ++i) starts[i] = before += starts[i];
}

extern "C" __global__ void penstock_escapes(const unsigned short* raw, u64 values,
                                            const unsigned* starts, unsigned short* positions,
                                            unsigned char* others,
                                            const __grid_constant__ Header header) {
  __shared__ unsigned char table[256];
  __shared__ unsigned counts[kThreads / 32];
  const u64 tile = blockIdx.x;
  if (starts[tile] == starts[tile + 1]) return;  // for the whole block
  make_table(table, header);
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const u64 run = tile * (kTile / 1024) + warp;
  const auto group = [&](unsigned g) {
    return eight(raw, run * 1024 + g * 256 + lane * kEach, values, header.exponent(0));
  };
  unsigned escapes = 0;
#pragma unroll 1
  for (unsigned g = 0; g < 4; ++g) {
    const uint4 words = group(g);
    places_of(exponents_of(words.x, words.y), table, 8 * g, escapes);
    places_of(exponents_of(words.z, words.w), table, 8 * g + 4, escapes);
  }
  const unsigned total = sum_of_warp(__popc(escapes));
  if (lane == 0) counts[warp] = total;
  __syncthreads();
  unsigned next = starts[tile];
  for (unsigned i = 0; i < warp; ++i) next += counts[i];
#pragma unroll 1
  for (unsigned g = 0; g < 4; ++g) {
    unsigned mine = escapes >> 8 * g & 0xff;
    unsigned up_to = __popc(mine);  // of the lanes up to this one
#pragma unroll
    for (unsigned far = 1; far < 32; far *= 2) {
      const unsigned other = __shfl_up_sync(~0u, up_to, far);
      if (lane >= far) up_to += other;
    }
    unsigned to = next + up_to - __popc(mine);
    next += __shfl_sync(~0u, up_to, 31);
    for (; mine != 0; mine &= mine - 1, ++to) {
      const unsigned position = warp * 1024 + g * 256 + lane * kEach + __ffs(mine) - 1;
      positions[to] = (unsigned short)position;
      others[to] = (unsigned char)(raw[tile * kTile + position] >> 7);
    }
  }
}
