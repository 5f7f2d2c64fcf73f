/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies within the fake driver; also for the nodes of its graphs.
 */
#ifndef PENSTOCK_TESTS_FAKE_MEMORY_H_
#define PENSTOCK_TESTS_FAKE_MEMORY_H_

#include "fake_driver.h"

void fake_copy_3d(const CUDA_MEMCPY3D* copy);
void fake_fill(CUdeviceptr dst, size_t pitch, unsigned int value, unsigned int element,
               size_t width, size_t height);

#endif /* PENSTOCK_TESTS_FAKE_MEMORY_H_ */
