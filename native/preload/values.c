/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of device memory that a stream waits for or writes.  Who changes a word that a stream polls
 * is not known, and may not be the device at all: its block is pinned for good.
 */
#include "preload/copies.h"

static void touch_word(penstock_call* call, uint64_t address, size_t bytes, bool polled) {
  if (polled) penstock_pin(address, 1, PENSTOCK_PIN_WAIT);
  penstock_touch_bytes(call, address, bytes, polled ? PENSTOCK_ACCESS_READ : PENSTOCK_ACCESS_WRITE);
}

void penstock_touch_words(penstock_call* call, const CUstreamBatchMemOpParams* operations,
                          unsigned int count) {
  for (unsigned int i = 0; operations != NULL && i < count; ++i) {
    const CUstreamBatchMemOpType what = operations[i].operation;
    if (what == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || what == CU_STREAM_MEM_OP_BARRIER) continue;
    const bool polled =
        what == CU_STREAM_MEM_OP_WAIT_VALUE_32 || what == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    touch_word(call, operations[i].waitValue.address, sizeof(uint64_t), polled);
  }
}

CUresult penstock_on_cuStreamWriteValue32(penstock_hook* self, CUstream stream, CUdeviceptr address,
                                          cuuint32_t value, unsigned int flags) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_VALUE, stream, touch_word(&call, address, sizeof(value), false),
                   PENSTOCK_REAL(cuStreamWriteValue32)(stream, address, value, flags));
}

CUresult penstock_on_cuStreamWriteValue64(penstock_hook* self, CUstream stream, CUdeviceptr address,
                                          cuuint64_t value, unsigned int flags) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_VALUE, stream, touch_word(&call, address, sizeof(value), false),
                   PENSTOCK_REAL(cuStreamWriteValue64)(stream, address, value, flags));
}

CUresult penstock_on_cuStreamWaitValue32(penstock_hook* self, CUstream stream, CUdeviceptr address,
                                         cuuint32_t value, unsigned int flags) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_VALUE, stream, touch_word(&call, address, sizeof(value), true),
                   PENSTOCK_REAL(cuStreamWaitValue32)(stream, address, value, flags));
}

CUresult penstock_on_cuStreamWaitValue64(penstock_hook* self, CUstream stream, CUdeviceptr address,
                                         cuuint64_t value, unsigned int flags) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_VALUE, stream, touch_word(&call, address, sizeof(value), true),
                   PENSTOCK_REAL(cuStreamWaitValue64)(stream, address, value, flags));
}

CUresult penstock_on_cuStreamBatchMemOp(penstock_hook* self, CUstream stream, unsigned int count,
                                        CUstreamBatchMemOpParams* operations, unsigned int flags) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_VALUE, stream, penstock_touch_words(&call, operations, count),
                   PENSTOCK_REAL(cuStreamBatchMemOp)(stream, count, operations, flags));
}
