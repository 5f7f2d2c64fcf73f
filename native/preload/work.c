/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/work.h"

#include <stdlib.h>
#include <string.h>

_Atomic(uint32_t) penstock_captures;
_Thread_local bool penstock_announcing;

void penstock_touches_init(penstock_touches* touches) {
  touches->list = touches->own;
  touches->count = 0;
  touches->capacity = PENSTOCK_INLINE_TOUCHES;
  touches->lost = false;
}

void penstock_touches_free(penstock_touches* touches) {
  if (touches->list != touches->own) free(touches->list);
  touches->list = touches->own;
  touches->count = 0;
}

static bool grow(penstock_touches* touches) {
  const uint32_t capacity = touches->capacity * 2;
  penstock_touch* const old = touches->list == touches->own ? NULL : touches->list;
  penstock_touch* const list = realloc(old, capacity * sizeof(*list));
  if (list == NULL) return false;
  if (old == NULL) memcpy(list, touches->own, touches->count * sizeof(*list));
  touches->list = list;
  touches->capacity = capacity;
  return true;
}

void penstock_touches_push(penstock_touches* touches, uint64_t address, uint64_t bytes,
                           uint32_t access) {
  if (touches->count == touches->capacity && !grow(touches)) {
    touches->lost = true;
    return;
  }
  touches->list[touches->count++] = (penstock_touch){address, bytes, access, 0};
}

bool penstock_is_capturing(CUstream stream) {
  if (atomic_load_explicit(&penstock_captures, memory_order_relaxed) == 0) return false;
  CUstreamCaptureStatus status = 0;
  const CUresult result = PENSTOCK_ASK(cuStreamIsCapturing, stream, &status);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void penstock_work_on(penstock_call* call, penstock_interposer* engine, int kind, CUstream stream) {
  call->engine = engine;
  call->work = (penstock_work){
      .struct_size = sizeof(penstock_work), .kind = kind, .stream = (uint64_t)(uintptr_t)stream};
  call->refusal = CUDA_SUCCESS;
  penstock_touches_init(&call->touches);
}

void penstock_touch_bytes(penstock_call* call, uint64_t address, uint64_t bytes, uint32_t access) {
  if (bytes != 0 && penstock_find_block(address, NULL)) {
    if (bytes > UINT64_MAX - address) bytes = UINT64_MAX - address; /* for the driver to refuse */
    penstock_touches_push(&call->touches, address, bytes, access);
  }
}

void penstock_touch_block(penstock_call* call, uint64_t address, uint32_t access) {
  if (penstock_find_block(address, NULL)) {
    penstock_touches_push(&call->touches, address, 0, access);
  }
}

/* A kernel that belongs to no context is launched in that of its stream, whatever is current. */
void* penstock_context_of(CUstream stream) {
  CUcontext context = NULL;
  const bool made = (uintptr_t)stream > PENSTOCK_PER_THREAD;
  if (made && PENSTOCK_ASK(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS) return context;
  return penstock_current_context();
}

bool penstock_begin(penstock_call* call) {
  penstock_work* const work = &call->work;
  work->context = penstock_context_of((CUstream)(uintptr_t)work->stream);
  work->touches = call->touches.list;
  work->count = call->touches.count;
  work->opaque |= call->touches.lost;
  work->captured = penstock_is_capturing((CUstream)(uintptr_t)work->stream);
  penstock_count(&penstock_counts.announced, 1);
  penstock_count(&penstock_counts.touches, work->count);
  if (work->opaque) penstock_count(&penstock_counts.opaque, 1);
  if (work->captured) penstock_count(&penstock_counts.captured, 1);
  if (call->refusal == CUDA_SUCCESS) call->refusal = call->engine->begin(work);
  penstock_announcing = call->refusal == CUDA_SUCCESS;
  if (penstock_announcing) return true;
  penstock_touches_free(&call->touches);
  return false;
}

CUresult penstock_end(penstock_call* call, CUresult result) {
  penstock_announcing = false;
  call->engine->end(&call->work, result);
  penstock_touches_free(&call->touches);
  return result;
}

bool penstock_made_room(CUresult result, size_t bytes) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY || penstock_announcing) return false;
  penstock_interposer* const engine = atomic_load(&penstock_loaded_engine);
  return engine != NULL && engine->make_room(penstock_current_context(), bytes) != 0;
}
