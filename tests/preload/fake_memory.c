/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of the fake driver: at once, byte by byte as CUDA says where each lies.
 */
#include "fake_memory.h"

#include <string.h>

static void move(uint64_t dst, uint64_t src, size_t bytes) {
  memmove((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, bytes);
}

/* An address on either side: a host pointer or a device address. */
static uint64_t side(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == 1 ? (uint64_t)(uintptr_t)host : device;
}

void fake_copy_3d(const CUDA_MEMCPY3D* c) {
  const uint64_t src = side(c->srcMemoryType, c->srcHost, c->srcDevice);
  const uint64_t dst = side(c->dstMemoryType, c->dstHost, c->dstDevice);
  for (size_t z = 0; z < c->Depth; ++z) {
    for (size_t y = 0; y < c->Height; ++y) {
      move(dst + c->dstXInBytes + c->dstPitch * (c->dstY + y + c->dstHeight * (c->dstZ + z)),
           src + c->srcXInBytes + c->srcPitch * (c->srcY + y + c->srcHeight * (c->srcZ + z)),
           c->WidthInBytes);
    }
  }
}

void fake_fill(CUdeviceptr dst, size_t pitch, unsigned int value, unsigned int element,
               size_t width, size_t height) {
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      memcpy((void*)(uintptr_t)(dst + y * pitch + x * element), &value, element);
    }
  }
}

CUresult fake_cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  fake_copy_3d(copy);
  return 0;
}
CUresult fake_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  (void)stream;
  fake_copy_3d(copy);
  return 0;
}
CUresult fake_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  CUDA_MEMCPY3D same; /* the peers' contexts lie where the other form has nothing */
  memcpy(&same, copy, sizeof(same));
  fake_copy_3d(&same);
  return 0;
}
CUresult fake_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  (void)stream;
  return fake_cuMemcpy3DPeer(copy);
}
CUresult fake_cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) {
  const uint64_t src = side(c->srcMemoryType, c->srcHost, c->srcDevice);
  const uint64_t dst = side(c->dstMemoryType, c->dstHost, c->dstDevice);
  for (size_t y = 0; y < c->Height; ++y) {
    move(dst + c->dstXInBytes + c->dstPitch * (c->dstY + y),
         src + c->srcXInBytes + c->srcPitch * (c->srcY + y), c->WidthInBytes);
  }
  return 0;
}
/* The other form takes the same. */
extern __typeof__(fake_cuMemcpy2D_v2) fake_cuMemcpy2DUnaligned_v2
    __attribute__((alias("fake_cuMemcpy2D_v2")));
CUresult fake_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  (void)stream;
  return fake_cuMemcpy2D_v2(copy);
}
static CUresult batch(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count) {
  for (size_t i = 0; i < count; ++i) move(dsts[i], srcs[i], sizes[i]);
  return 0;
}
CUresult fake_cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                                 CUmemcpyAttributes* attributes, size_t* indices, size_t n,
                                 size_t* failed, CUstream stream) {
  (void)attributes, (void)indices, (void)n, (void)failed, (void)stream;
  return batch(dsts, srcs, sizes, count);
}
CUresult fake_cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                                    size_t count, CUmemcpyAttributes* attributes, size_t* indices,
                                    size_t n, CUstream stream) {
  (void)attributes, (void)indices, (void)n, (void)stream;
  return batch(dsts, srcs, sizes, count);
}

CUresult fake_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  move(dst, src, bytes);
  return 0;
}
CUresult fake_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  (void)stream;
  return fake_cuMemcpy(dst, src, bytes);
}
CUresult fake_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                          CUmemcpyAttributes* attributes, CUstream stream) {
  (void)attributes;
  return fake_cuMemcpyAsync(dst, src, bytes, stream);
}
CUresult fake_cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
                           size_t bytes) {
  (void)to, (void)from;
  return fake_cuMemcpy(dst, src, bytes);
}
CUresult fake_cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
                                size_t bytes, CUstream stream) {
  (void)to, (void)from, (void)stream;
  return fake_cuMemcpy(dst, src, bytes);
}

#define COPY(way, to, from)                                                                \
  CUresult fake_cuMemcpy##way##_v2(to dst, from src, size_t bytes) {                       \
    return fake_cuMemcpy((uintptr_t)dst, (uintptr_t)src, bytes);                           \
  }                                                                                        \
  CUresult fake_cuMemcpy##way##Async_v2(to dst, from src, size_t bytes, CUstream stream) { \
    (void)stream;                                                                          \
    return fake_cuMemcpy##way##_v2(dst, src, bytes);                                       \
  }
COPY(DtoD, CUdeviceptr, CUdeviceptr)
COPY(HtoD, CUdeviceptr, const void*)
COPY(DtoH, void*, CUdeviceptr)

#define FILL(bits, type)                                                                          \
  CUresult fake_cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width,   \
                                       size_t height) {                                           \
    fake_fill(dst, pitch, value, bits / 8, width, height);                                        \
    return 0;                                                                                     \
  }                                                                                               \
  CUresult fake_cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, \
                                         size_t height, CUstream stream) {                        \
    (void)stream;                                                                                 \
    return fake_cuMemsetD2D##bits##_v2(dst, pitch, value, width, height);                         \
  }                                                                                               \
  CUresult fake_cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t count) {                 \
    return fake_cuMemsetD2D##bits##_v2(dst, 0, value, count, 1);                                  \
  }                                                                                               \
  CUresult fake_cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t count,                 \
                                       CUstream stream) {                                         \
    (void)stream;                                                                                 \
    return fake_cuMemsetD##bits##_v2(dst, value, count);                                          \
  }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
