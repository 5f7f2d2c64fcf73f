/* SPDX-License-Identifier: Apache-2.0
 *
 * The extents of copies and fills that graphs hold as well.  Thread rule: as work.h.
 */
#ifndef PENSTOCK_PRELOAD_COPIES_H_
#define PENSTOCK_PRELOAD_COPIES_H_

#include "preload/work.h"

void penstock_touch_3d(penstock_call* call, const CUDA_MEMCPY3D* copy);
/* `height` rows of `width` elements, `pitch` bytes apart. */
void penstock_touch_fill(penstock_call* call, uint64_t address, size_t pitch, size_t element,
                         size_t width, size_t height);
/* Adds the words that stream operations name, and pins those that a stream would poll. */
void penstock_touch_words(penstock_call* call, const CUstreamBatchMemOpParams* operations,
                          unsigned int count);

#endif /* PENSTOCK_PRELOAD_COPIES_H_ */
