/* SPDX-License-Identifier: Apache-2.0
 *
 * What lets something reach memory that no launch will show: other processes, other hardware,
 * textures, descriptors.  The block is pinned before the driver is asked, so that it is there.
 */
#include "preload/engine.h"

CUresult penstock_on_cuPointerSetAttribute(penstock_hook* self, const void* value,
                                           CUpointer_attribute attribute, CUdeviceptr address) {
  penstock_pin(address, 1, PENSTOCK_PIN_SHARED); /* what those who register memory for RDMA do */
  return PENSTOCK_REAL(cuPointerSetAttribute)(value, attribute, address);
}

CUresult penstock_on_cuIpcGetMemHandle(penstock_hook* self, CUipcMemHandle* handle,
                                       CUdeviceptr address) {
  penstock_pin(address, 1, PENSTOCK_PIN_SHARED);
  return PENSTOCK_REAL(cuIpcGetMemHandle)(handle, address);
}

CUresult penstock_on_cuMemRetainAllocationHandle(penstock_hook* self,
                                                 CUmemGenericAllocationHandle* handle,
                                                 void* address) {
  penstock_pin((uintptr_t)address, 1, PENSTOCK_PIN_SHARED);
  return PENSTOCK_REAL(cuMemRetainAllocationHandle)(handle, address);
}

CUresult penstock_on_cuMemGetHandleForAddressRange(penstock_hook* self, void* handle,
                                                   CUdeviceptr address, size_t bytes,
                                                   CUmemRangeHandleType type,
                                                   unsigned long long flags) {
  penstock_pin(address, 1, PENSTOCK_PIN_SHARED);
  return PENSTOCK_REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags);
}

CUresult penstock_on_cuMulticastBindAddr(penstock_hook* self,
                                         CUmemGenericAllocationHandle multicast, size_t offset,
                                         CUdeviceptr address, size_t bytes,
                                         unsigned long long flags) {
  penstock_pin(address, 1, PENSTOCK_PIN_SHARED);
  return PENSTOCK_REAL(cuMulticastBindAddr)(multicast, offset, address, bytes, flags);
}

static CUdeviceptr texture_memory(const CUDA_RESOURCE_DESC* resource) {
  const bool linear = resource != NULL && (resource->resType == CU_RESOURCE_TYPE_LINEAR ||
                                           resource->resType == CU_RESOURCE_TYPE_PITCH2D);
  return linear ? resource->res.linear.devPtr : 0;
}

CUresult penstock_on_cuTexObjectCreate(penstock_hook* self, CUtexObject* texture,
                                       const CUDA_RESOURCE_DESC* resource,
                                       const CUDA_TEXTURE_DESC* description,
                                       const CUDA_RESOURCE_VIEW_DESC* view) {
  const CUdeviceptr memory = texture_memory(resource);
  penstock_pin(memory, 1, PENSTOCK_PIN_TEXTURE);
  const CUresult result = PENSTOCK_REAL(cuTexObjectCreate)(texture, resource, description, view);
  if (result != CUDA_SUCCESS) penstock_pin(memory, -1, PENSTOCK_PIN_TEXTURE);
  return result;
}

CUresult penstock_on_cuTexObjectDestroy(penstock_hook* self, CUtexObject texture) {
  CUDA_RESOURCE_DESC resource;
  CUdeviceptr memory = 0;
  if (penstock_driver.cuTexObjectGetResourceDesc != NULL &&
      penstock_driver.cuTexObjectGetResourceDesc(&resource, texture) == CUDA_SUCCESS) {
    memory = texture_memory(&resource);
  }
  const CUresult result = PENSTOCK_REAL(cuTexObjectDestroy)(texture);
  if (result == CUDA_SUCCESS) penstock_pin(memory, -1, PENSTOCK_PIN_TEXTURE);
  return result;
}

/* Texture references belong to a module and are bound anew rather than destroyed: pinned for good.
 */
CUresult penstock_on_cuTexRefSetAddress(penstock_hook* self, size_t* offset, CUtexref texture,
                                        CUdeviceptr address, size_t bytes) {
  penstock_pin(address, 1, PENSTOCK_PIN_TEXTURE);
  return PENSTOCK_REAL(cuTexRefSetAddress_v2)(offset, texture, address, bytes);
}

CUresult penstock_on_cuTexRefSetAddress2D(penstock_hook* self, CUtexref texture,
                                          const CUDA_ARRAY_DESCRIPTOR* description,
                                          CUdeviceptr address, size_t pitch) {
  penstock_pin(address, 1, PENSTOCK_PIN_TEXTURE);
  return PENSTOCK_REAL(cuTexRefSetAddress2D_v2)(texture, description, address, pitch);
}

/* A tensor map is passed by value in a kernel's parameters, where its address is found if it stands
 * there in plain.  On Hopper it does; where it does not, the block must stay. */
static CUresult after_encoding(CUresult result, const CUtensorMap* map, const void* address) {
  if (result != CUDA_SUCCESS || map == NULL) return result;
  for (int i = 0; i < 16; ++i) {
    if (map->opaque[i] == (uintptr_t)address) return result;
  }
  penstock_pin((uintptr_t)address, 1, PENSTOCK_PIN_DESCRIPTOR);
  return result;
}

CUresult penstock_on_cuTensorMapEncodeTiled(
    penstock_hook* self, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dimensions, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return after_encoding(
      PENSTOCK_REAL(cuTensorMapEncodeTiled)(map, type, rank, address, dimensions, strides, box,
                                            steps, interleave, swizzle, promotion, fill),
      map, address);
}

CUresult penstock_on_cuTensorMapEncodeIm2col(
    penstock_hook* self, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dimensions, const cuuint64_t* strides, const int* lower, const int* upper,
    cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  return after_encoding(PENSTOCK_REAL(cuTensorMapEncodeIm2col)(
                            map, type, rank, address, dimensions, strides, lower, upper, channels,
                            pixels, steps, interleave, swizzle, promotion, fill),
                        map, address);
}

CUresult penstock_on_cuTensorMapEncodeIm2colWide(
    penstock_hook* self, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dimensions, const cuuint64_t* strides, int lower, int upper,
    cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
    CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return after_encoding(PENSTOCK_REAL(cuTensorMapEncodeIm2colWide)(
                            map, type, rank, address, dimensions, strides, lower, upper, channels,
                            pixels, steps, interleave, mode, swizzle, promotion, fill),
                        map, address);
}

CUresult penstock_on_cuTensorMapReplaceAddress(penstock_hook* self, CUtensorMap* map,
                                               void* address) {
  return after_encoding(PENSTOCK_REAL(cuTensorMapReplaceAddress)(map, address), map, address);
}
