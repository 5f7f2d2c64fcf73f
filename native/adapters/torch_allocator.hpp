// SPDX-License-Identifier: Apache-2.0
// penstock/torch.h, and those of torch's entry points that take C++ types.
//
// std::pair and std::function in the signatures are those of libstdc++ on both sides.  What throws
// does so as torch_errors.hpp says.
#pragma once

#include <functional>
#include <utility>

#include "penstock/torch.h"

namespace penstock::adapters {
using PoolId = std::pair<unsigned long long, unsigned long long>;  // NOLINT: torch's own type
using StreamFilter = std::function<bool(CUstream_st*)>;

// The allocator of a device; the second makes it if need be, and throws where that fails.
penstock_allocator* allocator_of(int device);
penstock_allocator* need_allocator(int device);
}  // namespace penstock::adapters

extern "C" {
PENSTOCK_API void penstock_torch_begin_pool(int device, penstock::adapters::PoolId pool,
                                            penstock::adapters::StreamFilter filter);
PENSTOCK_API void penstock_torch_end_pool(int device, penstock::adapters::PoolId pool);
PENSTOCK_API void penstock_torch_release_pool(int device, penstock::adapters::PoolId pool);
}  // extern "C"
