/* SPDX-License-Identifier: Apache-2.0
 *
 * The extents of copies, fills and words, which graphs hold as well.  Thread rule: as work.h.
 */
#ifndef PENSTOCK_PRELOAD_COPIES_H_
#define PENSTOCK_PRELOAD_COPIES_H_

#include "preload/work.h"

/* Either address may be 0, or the host's; if what is read is the host's, as the next. */
void penstock_touch_copy(penstock_call* call, uint64_t dst, uint64_t src, size_t bytes);
/* And the addresses in what it brings.  The blocks of those that come to stand where no kernel
 * names them, in a module's variable, are pinned for good; so are a captured copy's, of which only
 * this much is seen. */
void penstock_touch_from_host(penstock_call* call, uint64_t dst, const void* src, size_t bytes);
void penstock_touch_to_host(penstock_call* call, const void* dst, uint64_t src, size_t bytes);
void penstock_touch_2d(penstock_call* call, const CUDA_MEMCPY2D* copy);
void penstock_touch_3d(penstock_call* call, const CUDA_MEMCPY3D* copy);
void penstock_touch_batch(penstock_call* call, const CUdeviceptr* dsts, const CUdeviceptr* srcs,
                          const size_t* sizes, size_t count);
void penstock_touch_3d_batch(penstock_call* call, const CUDA_MEMCPY3D_BATCH_OP* copies,
                             size_t count);
void penstock_touch_packed(penstock_call* call, const CUmemDecompressParams* pieces, size_t count);

/* `height` rows of `width` elements, `pitch` bytes apart. */
void penstock_touch_fill(penstock_call* call, uint64_t address, size_t pitch, size_t element,
                         size_t width, size_t height);
void penstock_touch_node_fill(penstock_call* call, const CUDA_MEMSET_NODE_PARAMS_v1* fill);

/* A word that a stream writes or waits for.  Who changes one that a stream polls is not known, and
 * may not be the device at all: its block is pinned for good. */
void penstock_touch_word(penstock_call* call, uint64_t address, size_t bytes, bool polled);
void penstock_touch_words(penstock_call* call, const CUstreamBatchMemOpParams* operations,
                          unsigned int count);

#endif /* PENSTOCK_PRELOAD_COPIES_H_ */
