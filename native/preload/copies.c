/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies, fills and words, of every form: exact extents on both sides.  No block of the engine's
 * has an address of the host's, so that both sides are simply looked at.
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
  penstock_touch_bytes(call, begin, bytes, access | PENSTOCK_ACCESS_GAPS);
}

static bool is_address(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/* All forms name these members alike; one without layers has no third dimension. */
#define PENSTOCK_TOUCH_SIDE(copy, side, z, rows, depth, access)                                 \
  if (is_address((copy)->side##MemoryType)) {                                                   \
    const box part = {(copy)->side##XInBytes, (copy)->side##Y, z,    (copy)->side##Pitch, rows, \
                      (copy)->WidthInBytes,   (copy)->Height,  depth};                          \
    touch_box(call, (copy)->side##Device, &part, access);                                       \
  }

void penstock_touch_2d(penstock_call* call, const CUDA_MEMCPY2D* copy) {
  if (copy == NULL) return;
  PENSTOCK_TOUCH_SIDE(copy, src, 0, 0, 1, kRead)
  PENSTOCK_TOUCH_SIDE(copy, dst, 0, 0, 1, kWrite)
}

void penstock_touch_3d(penstock_call* call, const CUDA_MEMCPY3D* copy) {
  if (copy == NULL) return;
  PENSTOCK_TOUCH_SIDE(copy, src, copy->srcZ, copy->srcHeight, copy->Depth, kRead)
  PENSTOCK_TOUCH_SIDE(copy, dst, copy->dstZ, copy->dstHeight, copy->Depth, kWrite)
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

void penstock_touch_3d_batch(penstock_call* call, const CUDA_MEMCPY3D_BATCH_OP* copies,
                             size_t count) {
  for (size_t i = 0; copies != NULL && i < count; ++i) {
    touch_operand(call, &copies[i].src, &copies[i].dst, copies[i].extent, kRead);
    touch_operand(call, &copies[i].dst, &copies[i].src, copies[i].extent, kWrite);
  }
}

/* The driver does not know memory of the host's that is not page-locked. */
static bool on_host(uint64_t address) {
  const penstock_type_cuPointerGetAttribute ask =
      (penstock_type_cuPointerGetAttribute)penstock_hooks[PENSTOCK_HOOK_cuPointerGetAttribute].real;
  unsigned int type = 0;
  const CUresult result =
      ask != NULL ? ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) : CUDA_SUCCESS;
  return result == CUDA_ERROR_INVALID_VALUE ||
         (result == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST);
}

void penstock_touch_copy(penstock_call* call, uint64_t dst, uint64_t src, size_t bytes) {
  const bool ours = penstock_find_block(dst, NULL);
  if (penstock_find_block(src, NULL)) {
    const bool away = dst != 0 && !ours && !on_host(dst);
    penstock_touch_bytes(call, src, bytes, away ? kRead | PENSTOCK_ACCESS_AWAY : kRead);
  } else if (src != 0 && dst != 0 && on_host(src) && (ours || !on_host(dst))) {
    penstock_touch_from_host(call, dst, (const void*)(uintptr_t)src, bytes);
    return;
  }
  penstock_touch_bytes(call, dst, bytes, kWrite);
}

void penstock_touch_batch(penstock_call* call, const CUdeviceptr* dsts, const CUdeviceptr* srcs,
                          const size_t* sizes, size_t count) {
  if (dsts == NULL || srcs == NULL || sizes == NULL) return;
  for (size_t i = 0; i < count; ++i) penstock_touch_copy(call, dsts[i], srcs[i], sizes[i]);
}

/* What a piece unpacks to is only a guess of the caller's. */
void penstock_touch_packed(penstock_call* call, const CUmemDecompressParams* pieces, size_t count) {
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

static void scan_tables(penstock_touches* found, penstock_interposer* engine, const char* memory,
                        size_t bytes, uint64_t to) {
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t piece = bytes - at < kPiece ? bytes - at : kPiece;
    if (bytes > kPiece && piece >= kSamples * kWord && !may_be_table(memory + at, piece)) continue;
    penstock_scan(found, engine, memory + at, piece, to + at);
  }
}

void penstock_touch_from_host(penstock_call* call, uint64_t dst, const void* src, size_t bytes) {
  /* Not the host's, whatever the program calls it. */
  if (penstock_find_block((uintptr_t)src, NULL)) {
    penstock_touch_copy(call, dst, (uintptr_t)src, bytes);
    return;
  }
  penstock_touch_bytes(call, dst, bytes, kWrite);
  const size_t skipped = (kWord - dst % kWord) % kWord;
  if (src == NULL || bytes < skipped) return;
  penstock_touches hidden;
  penstock_touches_init(&hidden);
  const bool seen = penstock_find_block(dst, NULL) &&
                    !penstock_is_capturing((CUstream)(uintptr_t)call->work.stream);
  scan_tables(seen ? &call->touches : &hidden, call->engine, (const char*)src + skipped,
              bytes - skipped, dst + skipped);
  if (hidden.lost) call->refusal = CUDA_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < hidden.count && call->refusal == CUDA_SUCCESS; ++i) {
    call->refusal = penstock_pin(hidden.list[i].address, PENSTOCK_PIN_TABLE, NULL);
  }
  penstock_touches_free(&hidden);
}

void penstock_touch_to_host(penstock_call* call, const void* dst, uint64_t src, size_t bytes) {
  penstock_touch_bytes(call, src, bytes, kRead);
  penstock_touch_bytes(call, (uintptr_t)dst, bytes, kWrite);
}

void penstock_touch_fill(penstock_call* call, uint64_t address, size_t pitch, size_t element,
                         size_t width, size_t height) {
  if (width == 0 || height == 0) return;
  penstock_touch_bytes(call, address, (height - 1) * pitch + width * element,
                       height == 1 ? kWrite : kWrite | PENSTOCK_ACCESS_GAPS);
}

void penstock_touch_node_fill(penstock_call* call, const CUDA_MEMSET_NODE_PARAMS_v1* fill) {
  penstock_touch_fill(call, fill->dst, fill->pitch, fill->elementSize, fill->width, fill->height);
}

void penstock_touch_word(penstock_call* call, uint64_t address, size_t bytes, bool polled) {
  if (polled && call->refusal == CUDA_SUCCESS) {
    call->refusal = penstock_pin(address, PENSTOCK_PIN_WAIT, NULL);
  }
  penstock_touch_bytes(call, address, bytes, polled ? PENSTOCK_ACCESS_READ : PENSTOCK_ACCESS_WRITE);
}

void penstock_touch_words(penstock_call* call, const CUstreamBatchMemOpParams* operations,
                          unsigned int count) {
  for (unsigned int i = 0; operations != NULL && i < count; ++i) {
    const CUstreamBatchMemOpType what = operations[i].operation;
    if (what == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || what == CU_STREAM_MEM_OP_BARRIER) continue;
    const bool polled =
        what == CU_STREAM_MEM_OP_WAIT_VALUE_32 || what == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    const CUdeviceptr address = what == CU_STREAM_MEM_OP_ATOMIC_REDUCTION
                                    ? operations[i].atomicReduction.address
                                    : operations[i].waitValue.address;
    penstock_touch_word(call, address, sizeof(uint64_t), polled);
  }
}
