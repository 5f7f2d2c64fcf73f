/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills: cuMemset of every form.
 */
#include "preload/copies.h"

void penstock_touch_fill(penstock_call* call, uint64_t address, size_t pitch, size_t element,
                         size_t width, size_t height) {
  if (width == 0 || height == 0) return;
  penstock_touch_bytes(call, address, (height - 1) * pitch + width * element,
                       PENSTOCK_ACCESS_WRITE);
}

CUresult penstock_on_cuMemsetD8(penstock_hook* self, CUdeviceptr dst, unsigned char value,
                                size_t count) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL, penstock_touch_fill(&call, dst, 0, 1, count, 1),
                   PENSTOCK_REAL(cuMemsetD8_v2)(dst, value, count));
}

CUresult penstock_on_cuMemsetD2D8(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                  unsigned char value, size_t width, size_t height) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL,
                   penstock_touch_fill(&call, dst, pitch, 1, width, height),
                   PENSTOCK_REAL(cuMemsetD2D8_v2)(dst, pitch, value, width, height));
}

CUresult penstock_on_cuMemsetD8Async(penstock_hook* self, CUdeviceptr dst, unsigned char value,
                                     size_t count, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream, penstock_touch_fill(&call, dst, 0, 1, count, 1),
                   PENSTOCK_REAL(cuMemsetD8Async)(dst, value, count, stream));
}

CUresult penstock_on_cuMemsetD2D8Async(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                       unsigned char value, size_t width, size_t height,
                                       CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream,
                   penstock_touch_fill(&call, dst, pitch, 1, width, height),
                   PENSTOCK_REAL(cuMemsetD2D8Async)(dst, pitch, value, width, height, stream));
}

CUresult penstock_on_cuMemsetD16(penstock_hook* self, CUdeviceptr dst, unsigned short value,
                                 size_t count) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL, penstock_touch_fill(&call, dst, 0, 2, count, 1),
                   PENSTOCK_REAL(cuMemsetD16_v2)(dst, value, count));
}

CUresult penstock_on_cuMemsetD2D16(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                   unsigned short value, size_t width, size_t height) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL,
                   penstock_touch_fill(&call, dst, pitch, 2, width, height),
                   PENSTOCK_REAL(cuMemsetD2D16_v2)(dst, pitch, value, width, height));
}

CUresult penstock_on_cuMemsetD16Async(penstock_hook* self, CUdeviceptr dst, unsigned short value,
                                      size_t count, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream, penstock_touch_fill(&call, dst, 0, 2, count, 1),
                   PENSTOCK_REAL(cuMemsetD16Async)(dst, value, count, stream));
}

CUresult penstock_on_cuMemsetD2D16Async(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                        unsigned short value, size_t width, size_t height,
                                        CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream,
                   penstock_touch_fill(&call, dst, pitch, 2, width, height),
                   PENSTOCK_REAL(cuMemsetD2D16Async)(dst, pitch, value, width, height, stream));
}

CUresult penstock_on_cuMemsetD32(penstock_hook* self, CUdeviceptr dst, unsigned int value,
                                 size_t count) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL, penstock_touch_fill(&call, dst, 0, 4, count, 1),
                   PENSTOCK_REAL(cuMemsetD32_v2)(dst, value, count));
}

CUresult penstock_on_cuMemsetD2D32(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                   unsigned int value, size_t width, size_t height) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, NULL,
                   penstock_touch_fill(&call, dst, pitch, 4, width, height),
                   PENSTOCK_REAL(cuMemsetD2D32_v2)(dst, pitch, value, width, height));
}

CUresult penstock_on_cuMemsetD32Async(penstock_hook* self, CUdeviceptr dst, unsigned int value,
                                      size_t count, CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream, penstock_touch_fill(&call, dst, 0, 4, count, 1),
                   PENSTOCK_REAL(cuMemsetD32Async)(dst, value, count, stream));
}

CUresult penstock_on_cuMemsetD2D32Async(penstock_hook* self, CUdeviceptr dst, size_t pitch,
                                        unsigned int value, size_t width, size_t height,
                                        CUstream stream) {
  PENSTOCK_DO_WORK(PENSTOCK_WORK_FILL, stream,
                   penstock_touch_fill(&call, dst, pitch, 4, width, height),
                   PENSTOCK_REAL(cuMemsetD2D32Async)(dst, pitch, value, width, height, stream));
}
