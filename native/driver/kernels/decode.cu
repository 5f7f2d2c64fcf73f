// SPDX-License-Identifier: Apache-2.0
// Decodes bf16 values; the code is described in native/codec/bf16.hpp.  A block takes tile after
// tile: a thread turns 16 values at a time (24 bytes read, 32 written), and once all of a tile are
// in place its escapes are put over them.
//
// tools/compile_kernels.py makes decode_ptx.hpp from this file.  Whatever the code holds, nothing
// is written outside [out, out + values), nor read outside the code.
typedef unsigned long long u64;

constexpr unsigned kTile = 8192;
constexpr unsigned kAtOnce = 16;
constexpr unsigned kExponentsAt = 32;
constexpr unsigned kBytesAt = 64;

// Two values of two bytes, of which the lower half of `bytes` is made, and of a byte of indices.
__device__ __forceinline__ unsigned two(unsigned bytes, unsigned indices, const unsigned* low,
                                        const unsigned* high) {
  const unsigned apart = __byte_perm(bytes, 0, 0x4140);
  return (apart & 0x00800080u) << 8 | (apart & 0x007f007fu) | low[indices & 15] |
         high[indices >> 4 & 15];
}

__device__ __forceinline__ uint4 eight(unsigned first, unsigned second, unsigned indices,
                                       const unsigned* low, const unsigned* high) {
  uint4 values;
  values.x = two(first, indices, low, high);
  values.y = two(first >> 16, indices >> 8, low, high);
  values.z = two(second, indices >> 16, low, high);
  values.w = two(second >> 16, indices >> 24, low, high);
  return values;
}

extern "C" __global__ void penstock_decode(unsigned short* out, const unsigned char* code,
                                           u64 values, const unsigned char* indices,
                                           const unsigned* starts, const unsigned* escapes,
                                           u64 count) {
  __shared__ unsigned low[16];
  __shared__ unsigned high[16];
  if (threadIdx.x < 16) {
    low[threadIdx.x] = (unsigned)code[kExponentsAt + threadIdx.x] << 7;
    high[threadIdx.x] = low[threadIdx.x] << 16;
  }
  __syncthreads();
  const u64 tiles = (values + kTile - 1) / kTile;
  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const u64 first = tile * kTile;
    const u64 left = values - first;
    const unsigned here = left < kTile ? (unsigned)left : kTile;
#pragma unroll 2
    for (unsigned at = threadIdx.x * kAtOnce; at < here; at += blockDim.x * kAtOnce) {
      const uint4 bytes = *(const uint4*)(code + kBytesAt + first + at);
      const uint2 places = *(const uint2*)(indices + (first + at) / 2);
      const uint4 front = eight(bytes.x, bytes.y, places.x, low, high);
      const uint4 back = eight(bytes.z, bytes.w, places.y, low, high);
      unsigned short* const to = out + first + at;
      if (at + kAtOnce <= here) {
        ((uint4*)to)[0] = front;
        ((uint4*)to)[1] = back;
      } else {
        const unsigned words[8] = {front.x, front.y, front.z, front.w,
                                   back.x,  back.y,  back.z,  back.w};
#pragma unroll
        for (unsigned i = 0; i < kAtOnce; ++i) {
          if (at + i < here) to[i] = (unsigned short)(words[i / 2] >> (16 * (i % 2)));
        }
      }
    }
    const unsigned begin = starts[tile];
    const unsigned said = starts[tile + 1];
    const unsigned end = said < count ? said : (unsigned)count;
    if (begin >= end) continue;  // for all threads alike
    __syncthreads();
    for (unsigned i = begin + threadIdx.x; i < end; i += blockDim.x) {
      const unsigned escape = escapes[i];
      const unsigned place = escape & 0xffff;
      if (place >= here) continue;
      unsigned short* const to = out + first + place;
      *to = (unsigned short)((*to & 0x807f) | (escape >> 16 & 0xff) << 7);
    }
  }
}
