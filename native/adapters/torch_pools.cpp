// SPDX-License-Identifier: Apache-2.0
// Private pools, for the capture of CUDA graphs: torch hands over a filter that says which streams
// are being captured, and keeps it no longer than the call; the allocator does until the capture
// ends.
//
// Thread rule: any thread; several captures may be under way, on several devices.
#include <string>
#include <utility>

#include "adapters/torch_allocator.hpp"
#include "adapters/torch_errors.hpp"
#include "api/handles.hpp"

using namespace penstock::adapters;  // NOLINT(google-build-using-namespace)

namespace {

[[noreturn]] void raise_pool_error(const char* what) {
  raise_runtime_error(std::string("Penstock: a private pool cannot ") + what + ": " +
                      penstock_last_error());
}

}  // namespace

void penstock_torch_begin_pool(int device, PoolId pool, StreamFilter filter) {
  engine::Allocator::StreamFilter matches;
  if (filter != nullptr) {
    matches = [filter = std::move(filter)](driver::Stream stream) {
      return filter(reinterpret_cast<CUstream_st*>(stream));
    };
  }
  const penstock_status status = api::with(need_allocator(device), [&](auto& allocator) {
    return allocator.begin_pool({pool.first, pool.second}, std::move(matches));
  });
  if (status != PENSTOCK_OK) raise_pool_error("begin");
}

void penstock_torch_end_pool(int device, PoolId pool) {
  penstock_allocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  if (penstock_pool_end(allocator, pool.first, pool.second) != PENSTOCK_OK) raise_pool_error("end");
}

void penstock_torch_release_pool(int device, PoolId pool) {
  penstock_allocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  if (penstock_pool_release(allocator, pool.first, pool.second) != PENSTOCK_OK) {
    raise_pool_error("be released");
  }
}
