/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies, of every form: exact extents on both sides.  Host addresses never lie in the engine's
 * window, so that both sides are simply looked at.
 */
#include "preload/copies.h"

#include <string.h>

#include "preload/parameters.h"

enum { kRead = PENSTOCK_ACCESS_READ, kWrite = PENSTOCK_ACCESS_WRITE };

/* Rows of `width` bytes at a distance of `pitch`, in layers of `rows_per_layer` such rows. */
typedef struct {
  size_t x, y, z, pitch, rows_per_layer, width, height, depth;
} box;

static void touch_box(penstock_call* call, uint64_t address, const box* part, uint32_t access) {
  if (part->width == 0 || part->height == 0 || part->depth == 0) return;
  const uint64_t layer = (uint64_t)part->pitch * part->rows_per_layer;
  const uint64_t begin = address + part->x + part->pitch * part->y + layer * part->z;
  const uint64_t bytes = part->width + part->pitch * (part->height - 1) + layer * (part->depth - 1);
  penstock_touch_bytes(call, begin, bytes, access);
}

static bool is_address(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

static void touch_2d(penstock_call* call, const CUDA_MEMCPY2D* copy) {
  if (copy == NULL) return;
  const box from = {copy->srcXInBytes,  copy->srcY,   0, copy->srcPitch, 0,
                    copy->WidthInBytes, copy->Height, 1};
  const box to = {copy->dstXInBytes,  copy->dstY,   0, copy->dstPitch, 0,
                  copy->WidthInBytes, copy->Height, 1};
  if (is_address(copy->srcMemoryType)) touch_box(call, copy->srcDevice, &from, kRead);
  if (is_address(copy->dstMemoryType)) touch_box(call, copy->dstDevice, &to, kWrite);
}

void penstock_touch_3d(penstock_call* call, const CUDA_MEMCPY3D* copy) {
  if (copy == NULL) return;
  const box from = {copy->srcXInBytes, copy->srcY,         copy->srcZ,   copy->srcPitch,
                    copy->srcHeight,   copy->WidthInBytes, copy->Height, copy->Depth};
  const box to = {copy->dstXInBytes, copy->dstY,         copy->dstZ,   copy->dstPitch,
                  copy->dstHeight,   copy->WidthInBytes, copy->Height, copy->Depth};
  if (is_address(copy->srcMemoryType)) touch_box(call, copy->srcDevice, &from, kRead);
  if (is_address(copy->dstMemoryType)) touch_box(call, copy->dstDevice, &to, kWrite);
}

static void touch_peer(penstock_call* call, const CUDA_MEMCPY3D_PEER* copy) {
  if (copy == NULL) return;
  const box from = {copy->srcXInBytes, copy->srcY,         copy->srcZ,   copy->srcPitch,
                    copy->srcHeight,   copy->WidthInBytes, copy->Height, copy->Depth};
  const box to = {copy->dstXInBytes, copy->dstY,         copy->dstZ,   copy->dstPitch,
                  copy->dstHeight,   copy->WidthInBytes, copy->Height, copy->Depth};
  if (is_address(copy->srcMemoryType)) touch_box(call, copy->srcDevice, &from, kRead);
  if (is_address(copy->dstMemoryType)) touch_box(call, copy->dstDevice, &to, kWrite);
}

/* Lengths of rows are in elements, whose size only an array on the other side would tell: between
 * two addresses an element is a byte. */
static void touch_operand(penstock_call* call, const CUmemcpy3DOperand* side,
                          const CUmemcpy3DOperand* other, CUextent3D extent, uint32_t access) {
  if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER) return;
  if (other->type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
    penstock_touch_block(call, side->op.ptr.ptr, access);
    return;
  }
  const size_t row = side->op.ptr.rowLength != 0 ? side->op.ptr.rowLength : extent.width;
  const size_t rows = side->op.ptr.layerHeight != 0 ? side->op.ptr.layerHeight : extent.height;
  const box part = {0, 0, 0, row, rows, extent.width, extent.height, extent.depth};
  touch_box(call, side->op.ptr.ptr, &part, access);
}

static void touch_3d_batch(penstock_call* call, const CUDA_MEMCPY3D_BATCH_OP* copies,
                           size_t count) {
  for (size_t i = 0; copies != NULL && i < count; ++i) {
    touch_operand(call, &copies[i].src, &copies[i].dst, copies[i].extent, kRead);
    touch_operand(call, &copies[i].dst, &copies[i].src, copies[i].extent, kWrite);
  }
}

static void touch_pair(penstock_call* call, uint64_t dst, uint64_t src, size_t bytes) {
  penstock_touch_bytes(call, src, bytes, kRead);
  penstock_touch_bytes(call, dst, bytes, kWrite);
}

static void touch_batch(penstock_call* call, const CUdeviceptr* dsts, const CUdeviceptr* srcs,
                        const size_t* sizes, size_t count) {
  if (dsts == NULL || srcs == NULL || sizes == NULL) return;
  for (size_t i = 0; i < count; ++i) touch_pair(call, dsts[i], srcs[i], sizes[i]);
}

/* What a piece unpacks to is only a guess of the caller's. */
static void touch_packed(penstock_call* call, const CUmemDecompressParams* pieces, size_t count) {
  for (size_t i = 0; pieces != NULL && i < count; ++i) {
    penstock_touch_bytes(call, (uintptr_t)pieces[i].src, pieces[i].srcNumBytes, kRead);
    penstock_touch_block(call, (uintptr_t)pieces[i].dst, kWrite);
    penstock_touch_bytes(call, (uintptr_t)pieces[i].dstActBytes, sizeof(cuuint32_t), kWrite);
  }
}

/* Tables of pointers (of grouped products, of kernels over lists of tensors) come from the host,
 * often with other numbers behind them: FSDP2 sends the gradients' addresses and then an index for
 * every 2 KiB of them, 0.6 MB for GPT-2 of 1B.  Of a copy that is larger than a piece only
 * those pieces are read whole whose samples are small numbers or addresses, as a rule; data, which
 * fills all the bits of its words, costs a look for every 16 KiB. */
enum { kWord = sizeof(uint64_t), kPiece = 256 << 10, kSamples = 16, kAddressBits = 48 };

static bool may_be_table(const char* piece, size_t bytes) {
  const size_t stride = bytes / kSamples / kWord * kWord;
  int small = 0;
  for (int i = 0; i < kSamples; ++i) {
    uint64_t value;
    memcpy(&value, piece + (size_t)i * stride, sizeof(value));
    small += value >> kAddressBits == 0;
  }
  return 2 * small >= kSamples;
}

static void scan_tables(penstock_call* call, const char* memory, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t piece = bytes - at < kPiece ? bytes - at : kPiece;
    if (bytes > kPiece && piece >= kSamples * kWord && !may_be_table(memory + at, piece)) continue;
    penstock_scan(&call->touches, call->engine, memory + at, piece);
  }
}

static void touch_from_host(penstock_call* call, uint64_t dst, const void* src, size_t bytes) {
  penstock_touch_bytes(call, dst, bytes, kWrite);
  const size_t skipped = (kWord - dst % kWord) % kWord;
  if (call->touches.count == 0 || src == NULL || bytes < skipped) return;
  uint32_t i = call->touches.count;
  scan_tables(call, (const char*)src + skipped, bytes - skipped);
  for (; i < call->touches.count; ++i) call->touches.list[i].access = PENSTOCK_ACCESS_HELD;
}

CUresult penstock_on_cuMemcpy(penstock_hook* self, CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_pair(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpy)(dst, src, bytes));
}

CUresult penstock_on_cuMemcpyPeer(penstock_hook* self, CUdeviceptr dst, CUcontext dst_context,
                                  CUdeviceptr src, CUcontext src_context, size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_pair(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyPeer)(dst, dst_context, src, src_context, bytes));
}

CUresult penstock_on_cuMemcpyHtoD(penstock_hook* self, CUdeviceptr dst, const void* src,
                                  size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_from_host(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyHtoD_v2)(dst, src, bytes));
}

CUresult penstock_on_cuMemcpyDtoH(penstock_hook* self, void* dst, CUdeviceptr src, size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, penstock_touch_bytes(&call, src, bytes, kRead),
                   PENSTOCK_REAL(cuMemcpyDtoH_v2)(dst, src, bytes));
}

CUresult penstock_on_cuMemcpyDtoD(penstock_hook* self, CUdeviceptr dst, CUdeviceptr src,
                                  size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_pair(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyDtoD_v2)(dst, src, bytes));
}

CUresult penstock_on_cuMemcpy2D(penstock_hook* self, const CUDA_MEMCPY2D* copy) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_2d(&call, copy),
                   PENSTOCK_REAL(cuMemcpy2D_v2)(copy));
}

CUresult penstock_on_cuMemcpy3D(penstock_hook* self, const CUDA_MEMCPY3D* copy) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, penstock_touch_3d(&call, copy),
                   PENSTOCK_REAL(cuMemcpy3D_v2)(copy));
}

CUresult penstock_on_cuMemcpy3DPeer(penstock_hook* self, const CUDA_MEMCPY3D_PEER* copy) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, touch_peer(&call, copy),
                   PENSTOCK_REAL(cuMemcpy3DPeer)(copy));
}

CUresult penstock_on_cuMemcpyAsync(penstock_hook* self, CUdeviceptr dst, CUdeviceptr src,
                                   size_t bytes, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_pair(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyAsync)(dst, src, bytes, stream));
}

CUresult penstock_on_cuMemcpyPeerAsync(penstock_hook* self, CUdeviceptr dst, CUcontext dst_context,
                                       CUdeviceptr src, CUcontext src_context, size_t bytes,
                                       CUstream stream) {
  PENSTOCK_DO_WORK(
      PENSTOCK_WORK_COPY, stream, touch_pair(&call, dst, src, bytes),
      PENSTOCK_REAL(cuMemcpyPeerAsync)(dst, dst_context, src, src_context, bytes, stream));
}

CUresult penstock_on_cuMemcpyHtoDAsync(penstock_hook* self, CUdeviceptr dst, const void* src,
                                       size_t bytes, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_from_host(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyHtoDAsync_v2)(dst, src, bytes, stream));
}

CUresult penstock_on_cuMemcpyDtoHAsync(penstock_hook* self, void* dst, CUdeviceptr src,
                                       size_t bytes, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, penstock_touch_bytes(&call, src, bytes, kRead),
                   PENSTOCK_REAL(cuMemcpyDtoHAsync_v2)(dst, src, bytes, stream));
}

CUresult penstock_on_cuMemcpyDtoDAsync(penstock_hook* self, CUdeviceptr dst, CUdeviceptr src,
                                       size_t bytes, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_pair(&call, dst, src, bytes),
                   PENSTOCK_REAL(cuMemcpyDtoDAsync_v2)(dst, src, bytes, stream));
}

CUresult penstock_on_cuMemcpy2DAsync(penstock_hook* self, const CUDA_MEMCPY2D* copy,
                                     CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_2d(&call, copy),
                   PENSTOCK_REAL(cuMemcpy2DAsync_v2)(copy, stream));
}

CUresult penstock_on_cuMemcpy3DAsync(penstock_hook* self, const CUDA_MEMCPY3D* copy,
                                     CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, penstock_touch_3d(&call, copy),
                   PENSTOCK_REAL(cuMemcpy3DAsync_v2)(copy, stream));
}

CUresult penstock_on_cuMemcpy3DPeerAsync(penstock_hook* self, const CUDA_MEMCPY3D_PEER* copy,
                                         CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_peer(&call, copy),
                   PENSTOCK_REAL(cuMemcpy3DPeerAsync)(copy, stream));
}

CUresult penstock_on_cuMemcpyDtoA(penstock_hook* self, CUarray dst, size_t offset, CUdeviceptr src,
                                  size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, penstock_touch_bytes(&call, src, bytes, kRead),
                   PENSTOCK_REAL(cuMemcpyDtoA_v2)(dst, offset, src, bytes));
}

CUresult penstock_on_cuMemcpyAtoD(penstock_hook* self, CUdeviceptr dst, CUarray src, size_t offset,
                                  size_t bytes) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, NULL, penstock_touch_bytes(&call, dst, bytes, kWrite),
                   PENSTOCK_REAL(cuMemcpyAtoD_v2)(dst, src, offset, bytes));
}

CUresult penstock_on_cuMemcpyBatchAsync(penstock_hook* self, CUdeviceptr* dsts, CUdeviceptr* srcs,
                                        size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
                                        size_t* indices, size_t attribute_count, size_t* failed,
                                        CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_batch(&call, dsts, srcs, sizes, count),
                   PENSTOCK_REAL(cuMemcpyBatchAsync)(dsts, srcs, sizes, count, attributes, indices,
                                                     attribute_count, failed, stream));
}

CUresult penstock_on_cuMemcpyBatchAsyncV2(penstock_hook* self, CUdeviceptr* dsts, CUdeviceptr* srcs,
                                          size_t* sizes, size_t count,
                                          CUmemcpyAttributes* attributes, size_t* indices,
                                          size_t attribute_count, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_batch(&call, dsts, srcs, sizes, count),
                   PENSTOCK_REAL(cuMemcpyBatchAsync_v2)(dsts, srcs, sizes, count, attributes,
                                                        indices, attribute_count, stream));
}

CUresult penstock_on_cuMemcpy3DBatchAsync(penstock_hook* self, size_t count,
                                          CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,
                                          unsigned long long flags, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_3d_batch(&call, copies, count),
                   PENSTOCK_REAL(cuMemcpy3DBatchAsync)(count, copies, failed, flags, stream));
}

CUresult penstock_on_cuMemcpy3DBatchAsyncV2(penstock_hook* self, size_t count,
                                            CUDA_MEMCPY3D_BATCH_OP* copies,
                                            unsigned long long flags, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_3d_batch(&call, copies, count),
                   PENSTOCK_REAL(cuMemcpy3DBatchAsync_v2)(count, copies, flags, stream));
}

CUresult penstock_on_cuMemBatchDecompressAsync(penstock_hook* self, CUmemDecompressParams* pieces,
                                               size_t count, unsigned int flags, size_t* failed,
                                               CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_COPY, stream, touch_packed(&call, pieces, count),
                   PENSTOCK_REAL(cuMemBatchDecompressAsync)(pieces, count, flags, failed, stream));
}
