/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies, fills and words, of every form: exact extents on both sides.  No block of the engine's
 * has an address of the host's, so that both sides are simply looked at.
 */
#include "preload/copies.h"

#include <string.h>

#include "preload/parameters.h"

enum { kRead = PENSTOCK_ACCESS_READ, kWrite = PENSTOCK_ACCESS_WRITE };

/* The driver does not know memory of the host's that is not page-locked. */
static bool on_host(uint64_t address) {
  if (penstock_find_block(address, NULL)) return false;
  const penstock_type_cuPointerGetAttribute ask =
      (penstock_type_cuPointerGetAttribute)penstock_hooks[PENSTOCK_HOOK_cuPointerGetAttribute].real;
  unsigned int type = 0;
  const CUresult result =
      ask != NULL ? ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) : CUDA_SUCCESS;
  return result == CUDA_ERROR_INVALID_VALUE ||
         (result == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST);
}

/* One side of a copy: rows of `width` bytes at a distance of `pitch`, in layers of
 * `rows_per_layer` such rows.  Address 0: an array, or nothing. */
typedef struct {
  uint64_t address;
  size_t x, y, z, pitch, rows_per_layer, width, height, depth;
} box;

static uint64_t row_of(const box* part, size_t y, size_t z) {
  return part->address + part->x +
         part->pitch * (part->y + y + part->rows_per_layer * (part->z + z));
}

static bool is_line(const box* part) {
  return (part->height == 1 || part->pitch == part->width) &&
         (part->depth == 1 || part->pitch * part->rows_per_layer == part->width * part->height);
}

static void touch_box(penstock_call* call, const box* part, uint32_t access) {
  const uint64_t begin = row_of(part, 0, 0);
  const uint64_t end = row_of(part, part->height - 1, part->depth - 1) + part->width;
  penstock_touch_bytes(call, begin, end - begin, access | PENSTOCK_ACCESS_GAPS);
}

static void touch_tables(penstock_call* call, const box* to, const box* from);

static void touch_boxes(penstock_call* call, const box* to, const box* from) {
  if (to->width == 0 || to->height == 0 || to->depth == 0) return;
  if (to->address != 0 && from->address != 0 && is_line(to) && is_line(from)) {
    penstock_touch_copy(call, row_of(to, 0, 0), row_of(from, 0, 0),
                        to->width * to->height * to->depth);
    return;
  }
  if (from->address != 0) touch_box(call, from, kRead);
  if (to->address != 0) touch_box(call, to, kWrite);
  const bool both = to->address != 0 && from->address != 0;
  if (both && on_host(from->address) && !on_host(to->address)) touch_tables(call, to, from);
}

/* Not the host's may be what the program calls it. */
static uint64_t side_address(CUmemorytype type, const void* host, CUdeviceptr device) {
  if (type == CU_MEMORYTYPE_HOST) return (uintptr_t)host;
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}

/* All forms name these members alike; one without layers has no third dimension. */
#define PENSTOCK_SIDE(copy, side, z, rows, depth)                                     \
  {                                                                                   \
    side_address((copy)->side##MemoryType, (copy)->side##Host, (copy)->side##Device), \
        (copy)->side##XInBytes, (copy)->side##Y, z, (copy)->side##Pitch, rows,        \
        (copy)->WidthInBytes, (copy)->Height, depth                                   \
  }

void penstock_touch_2d(penstock_call* call, const CUDA_MEMCPY2D* copy) {
  if (copy == NULL) return;
  const box from = PENSTOCK_SIDE(copy, src, 0, 0, 1);
  const box to = PENSTOCK_SIDE(copy, dst, 0, 0, 1);
  touch_boxes(call, &to, &from);
}

void penstock_touch_3d(penstock_call* call, const CUDA_MEMCPY3D* copy) {
  if (copy == NULL) return;
  const box from = PENSTOCK_SIDE(copy, src, copy->srcZ, copy->srcHeight, copy->Depth);
  const box to = PENSTOCK_SIDE(copy, dst, copy->dstZ, copy->dstHeight, copy->Depth);
  touch_boxes(call, &to, &from);
}

/* Lengths of rows are in elements, whose size only an array on the other side would tell: between
 * two addresses an element is a byte. */
static box box_of(const CUmemcpy3DOperand* side, CUextent3D extent) {
  const size_t row = side->op.ptr.rowLength != 0 ? side->op.ptr.rowLength : extent.width;
  const size_t rows = side->op.ptr.layerHeight != 0 ? side->op.ptr.layerHeight : extent.height;
  return (box){side->op.ptr.ptr, 0, 0, 0, row, rows, extent.width, extent.height, extent.depth};
}

void penstock_touch_3d_batch(penstock_call* call, const CUDA_MEMCPY3D_BATCH_OP* copies,
                             size_t count) {
  for (size_t i = 0; copies != NULL && i < count; ++i) {
    const CUmemcpy3DOperand* const src = &copies[i].src;
    const CUmemcpy3DOperand* const dst = &copies[i].dst;
    const bool from_pointer = src->type == CU_MEMCPY_OPERAND_TYPE_POINTER;
    const bool to_pointer = dst->type == CU_MEMCPY_OPERAND_TYPE_POINTER;
    if (from_pointer && to_pointer) {
      const box from = box_of(src, copies[i].extent);
      const box to = box_of(dst, copies[i].extent);
      touch_boxes(call, &to, &from);
    } else if (from_pointer) {
      penstock_touch_block(call, src->op.ptr.ptr, kRead);
    } else if (to_pointer) {
      penstock_touch_block(call, dst->op.ptr.ptr, kWrite);
    }
  }
}

void penstock_touch_copy(penstock_call* call, uint64_t dst, uint64_t src, size_t bytes) {
  if (penstock_find_block(src, NULL)) {
    const bool away = dst != 0 && !on_host(dst) && !penstock_find_block(dst, NULL);
    penstock_touch_bytes(call, src, bytes, away ? kRead | PENSTOCK_ACCESS_AWAY : kRead);
  } else if (src != 0 && dst != 0 && on_host(src) && !on_host(dst)) {
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
                        size_t bytes, uint64_t to, bool sampled) {
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t piece = bytes - at < kPiece ? bytes - at : kPiece;
    if (sampled && piece >= kSamples * kWord && !may_be_table(memory + at, piece)) continue;
    penstock_scan(found, engine, memory + at, piece, to + at);
  }
}

/* What a graph's own copy brings, the host may have only when it is launched. */
static void touch_tables(penstock_call* call, const box* to, const box* from) {
  if (call->work.kind == PENSTOCK_WORK_GRAPH) return;
  penstock_touches hidden;
  penstock_touches_init(&hidden);
  penstock_block block;
  const bool ours = penstock_find_block(to->address, &block);
  const bool seen = ours && !penstock_is_capturing((CUstream)(uintptr_t)call->work.stream);
  /* A copy that goes further is the driver's to refuse: the host need not have what it brings. */
  const uint64_t end = ours ? block.base + block.bytes : UINT64_MAX;
  const bool sampled = to->width > kPiece / to->height / to->depth;
  for (size_t row = 0; row < to->height * to->depth; ++row) {
    const uint64_t dst = row_of(to, row % to->height, row / to->height);
    const char* const src =
        (const char*)(uintptr_t)row_of(from, row % to->height, row / to->height);
    if (dst >= end) break;
    const size_t bytes = end - dst < to->width ? end - dst : to->width;
    const size_t skipped = (kWord - dst % kWord) % kWord;
    if (bytes < skipped) continue;
    scan_tables(seen ? &call->touches : &hidden, call->engine, src + skipped, bytes - skipped,
                dst + skipped, sampled);
  }
  if (hidden.lost) call->refusal = CUDA_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < hidden.count && call->refusal == CUDA_SUCCESS; ++i) {
    call->refusal = penstock_pin(hidden.list[i].address, PENSTOCK_PIN_TABLE, NULL);
  }
  penstock_touches_free(&hidden);
}

void penstock_touch_from_host(penstock_call* call, uint64_t dst, const void* src, size_t bytes) {
  /* Not the host's, whatever the program calls it. */
  if (penstock_find_block((uintptr_t)src, NULL)) {
    penstock_touch_copy(call, dst, (uintptr_t)src, bytes);
    return;
  }
  penstock_touch_bytes(call, dst, bytes, kWrite);
  if (src == NULL || bytes == 0) return;
  const box to = {.address = dst, .width = bytes, .height = 1, .depth = 1};
  const box from = {.address = (uintptr_t)src, .width = bytes, .height = 1, .depth = 1};
  touch_tables(call, &to, &from);
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
