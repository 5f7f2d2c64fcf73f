// SPDX-License-Identifier: Apache-2.0
// Whether a page is what it was when it last left.  Nobody tells whether a kernel wrote to the
// memory that it was given, so every page that leaves is compared by a digest of 128 bits: to read
// 16 MiB at 4 TB/s takes 4 us, to copy it at 55 GB/s 305.
// Digests are kept in device memory, since a read over a link that is full of copies waits for
// them: with that, and sums added by all threads, a comparison of 4 MiB took 6 us on an H200, not
// 40.  Sums that meet in atomics, as they do now, have not been measured.
//
// tools/compile_kernels.py makes changed_copy_ptx.hpp from this file.  Thread rule: launches of one
// stream, one after another, since they share `work`.
typedef unsigned long long u64;

struct Work {  // in device memory; 0 between launches
  u64 ticket;
  u64 sums[2];
};

// Every word of 16 bytes is mixed with its place, so that sums do not depend on the order of
// threads, and words that change places do not cancel.
__device__ __forceinline__ u64 mix(u64 x, u64 y) { return __umul64hi(x, y) ^ (x * y); }

__device__ __forceinline__ void add_word(const uint4 word, u64 place, u64 sums[2]) {
  const u64 low = word.x | (u64)word.y << 32;
  const u64 high = word.z | (u64)word.w << 32;
  const u64 first = place * 0x9e3779b97f4a7c15ull + 0x243f6a8885a308d3ull;
  const u64 second = place * 0xd1b54a32d192ed03ull + 0x13198a2e03707344ull;
  sums[0] += mix(low ^ first, high ^ second);
  sums[1] += mix(low ^ ~second, high ^ ~first);
}

// Four words are read before the first of them is written, since a write may be to what the next
// read reads, for all that the compiler knows.
__device__ __forceinline__ void copy(uint4* to, const uint4* from, u64 words, u64 first,
                                     u64 stride) {
  u64 i = first;
#pragma unroll 1
  for (; i + 3 * stride < words; i += 4 * stride) {
    const uint4 a = from[i];
    const uint4 b = from[i + stride];
    const uint4 c = from[i + 2 * stride];
    const uint4 d = from[i + 3 * stride];
    to[i] = a;
    to[i + stride] = b;
    to[i + 2 * stride] = c;
    to[i + 3 * stride] = d;
  }
#pragma unroll 1
  for (; i < words; i += stride) to[i] = from[i];
}

// `digest`, in device memory, becomes the page's; where one was `known`, and is another,
// counts[0], in page-locked host memory, counts it.  Such a page, or one of which none was known,
// is copied here, unless `host` is null, by the block that ends last, which counts[1] counts:
// slower than the copy engine, for pages that are not expected to have changed.
extern "C" __global__ void penstock_compare(const uint4* page, u64 words, u64* digest,
                                            unsigned known, volatile unsigned* counts, uint4* host,
                                            Work* work) {
  __shared__ u64 of_block[2];
  __shared__ bool last;
  __shared__ bool changed;
  if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
  __syncthreads();
  u64 sums[2] = {0, 0};
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
    add_word(page[i], i, sums);
  }
#pragma unroll 1
  for (int step = 16; step > 0; step /= 2) {
    sums[0] += __shfl_down_sync(0xffffffffu, sums[0], step);
    sums[1] += __shfl_down_sync(0xffffffffu, sums[1], step);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&of_block[0], sums[0]);
    atomicAdd(&of_block[1], sums[1]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&work->sums[0], of_block[0]);
    atomicAdd(&work->sums[1], of_block[1]);
    __threadfence();
    last = atomicAdd(&work->ticket, 1ull) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) {
    __threadfence();
    const u64 first = atomicExch(&work->sums[0], 0);
    const u64 second = atomicExch(&work->sums[1], 0);
    changed = !known || digest[0] != first || digest[1] != second;
    work->ticket = 0;
    if (changed) {
      digest[0] = first;
      digest[1] = second;
      if (known) counts[0] = counts[0] + 1;
      if (host) counts[1] = counts[1] + 1;
    }
  }
  __syncthreads();
  if (changed && host) copy(host, page, words, threadIdx.x, blockDim.x);
}
