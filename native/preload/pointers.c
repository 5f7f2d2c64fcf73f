/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions about addresses.  The driver knows the chunks behind a block, and nothing at all of a
 * block that has left the device; so for blocks of the engine's the proxy answers, as the driver
 * would for memory of cuMemAlloc.
 */
#include <string.h>

#include "preload/engine.h"

CUresult penstock_on_cuMemGetAddressRange_v2(penstock_hook* self, CUdeviceptr* base, size_t* bytes,
                                             CUdeviceptr address) {
  penstock_block block;
  if (!penstock_find_block(address, &block)) {
    return PENSTOCK_REAL(cuMemGetAddressRange_v2)(base, bytes, address);
  }
  if (base != NULL) *base = block.base;
  if (bytes != NULL) *bytes = block.bytes;
  return CUDA_SUCCESS;
}

typedef struct {
  uint64_t value;
  size_t bytes;
} answer;

/* The width of each is the driver's; benchmarks/programs/launch.cu compares it with a real one. */
static answer describe(const penstock_block* block, CUpointer_attribute attribute,
                       CUdeviceptr address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return (answer){(uintptr_t)block->context, sizeof(void*)};
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return (answer){CU_MEMORYTYPE_DEVICE, sizeof(uint32_t)};
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return (answer){address, sizeof(CUdeviceptr)};
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return (answer){block->id, sizeof(uint64_t)};
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return (answer){(uint32_t)block->device, sizeof(int32_t)};
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return (answer){block->base, sizeof(CUdeviceptr)};
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return (answer){block->bytes, sizeof(size_t)};
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return (answer){1, sizeof(uint32_t)};
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return (answer){3, sizeof(uint32_t)}; /* read and write */
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return (answer){0, sizeof(uint32_t)};
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return (answer){0, sizeof(uint64_t)};
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
      return (answer){UINT32_MAX, sizeof(int32_t)}; /* -1: in none */
    default: /* an address on the host, a token of another interface, or newer than this list */
      return (answer){0, 0};
  }
}

CUresult penstock_on_cuPointerGetAttribute(penstock_hook* self, void* data,
                                           CUpointer_attribute attribute, CUdeviceptr address) {
  penstock_block block;
  if (data == NULL || !penstock_find_block(address, &block)) {
    return PENSTOCK_REAL(cuPointerGetAttribute)(data, attribute, address);
  }
  const answer found = describe(&block, attribute, address);
  if (found.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  memcpy(data, &found.value, found.bytes);
  return CUDA_SUCCESS;
}

/* This form gives zero for what a pointer does not have. */
CUresult penstock_on_cuPointerGetAttributes(penstock_hook* self, unsigned int count,
                                            CUpointer_attribute* attributes, void** data,
                                            CUdeviceptr address) {
  penstock_block block;
  if (attributes == NULL || data == NULL || !penstock_find_block(address, &block)) {
    return PENSTOCK_REAL(cuPointerGetAttributes)(count, attributes, data, address);
  }
  for (unsigned int i = 0; i < count; ++i) {
    const answer found = describe(&block, attributes[i], address);
    const bool host = attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER;
    memcpy(data[i], &found.value, host ? sizeof(void*) : found.bytes);
  }
  return CUDA_SUCCESS;
}
