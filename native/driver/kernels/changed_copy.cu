// SPDX-License-Identifier: Apache-2.0
// Copy a page to the host if it is not what the host has.  Nobody tells whether a kernel wrote to
// the memory that it was given, so every page that leaves is compared by a digest of 128 bits with
// what it was when it last left: to read 16 MiB at 4 TB/s takes 4 us, to copy it at 55 GB/s 305.
// Digests are kept in device memory, since a read over a link that is full of copies waits for
// them: with that, and sums added by all threads, a comparison of 4 MiB takes 6 us on an H200,
// not 40.
//
// tools/compile_kernels.py makes changed_copy_ptx.hpp from this file.  Thread rule: launches of one
// stream, one after another, since they share `work`.
typedef unsigned long long u64;

struct Work {  // in device memory
  unsigned ticket;
  unsigned changed;
  u64 sums[512][2];
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

// The sum over the block, in thread 0.
__device__ void add_up(u64 sums[2]) {
  __shared__ u64 of_warp[32][2];
  for (int k = 0; k < 2; ++k) {
    for (int step = 16; step > 0; step /= 2) {
      sums[k] += __shfl_down_sync(0xffffffffu, sums[k], step);
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][k] = sums[k];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 0; k < 2; ++k) {
      sums[k] = 0;
      for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sums[k] += of_warp[warp][k];
    }
  }
}

__device__ __forceinline__ void copy(uint4* to, const uint4* from, u64 words, u64 first,
                                     u64 stride) {
#pragma unroll 8
  for (u64 i = first; i < words; i += stride) to[i] = from[i];
}

// `digest`, in device memory, becomes the page's; *copies, in page-locked host memory, counts how
// often it was another one, or none was `known`.  Then the page is copied here, unless `host` is
// null, by the block that ends last: slower, for pages that are not expected to have changed.
extern "C" __global__ void penstock_compare(const uint4* page, u64 words, u64* digest,
                                            unsigned known, volatile unsigned* copies, uint4* host,
                                            Work* work) {
  __shared__ bool last;
  __shared__ bool changed;
  u64 sums[2] = {0, 0};
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
    add_word(page[i], i, sums);
  }
  add_up(sums);
  if (threadIdx.x == 0) {
    work->sums[blockIdx.x][0] = sums[0];
    work->sums[blockIdx.x][1] = sums[1];
    __threadfence();
    last = atomicAdd(&work->ticket, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  // By all threads: one alone would wait for each few of the sums before it reads the next.
  sums[0] = sums[1] = 0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += blockDim.x) {
    sums[0] += ((volatile u64*)work->sums[block])[0];
    sums[1] += ((volatile u64*)work->sums[block])[1];
  }
  add_up(sums);
  if (threadIdx.x == 0) {
    changed = !known || digest[0] != sums[0] || digest[1] != sums[1];
    work->ticket = 0;
    work->changed = changed;
    if (changed) {
      digest[0] = sums[0];
      digest[1] = sums[1];
      *copies = *copies + 1;
    }
  }
  __syncthreads();
  if (changed && host) copy(host, page, words, threadIdx.x, blockDim.x);
}

extern "C" __global__ void penstock_copy_if_changed(const uint4* page, u64 words, uint4* host,
                                                    const Work* work) {
  if (!work->changed) return;
  copy(host, page, words, (u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}
