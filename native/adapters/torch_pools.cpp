// SPDX-License-Identifier: Apache-2.0
// Private pools, for the capture of CUDA graphs: torch hands over a filter that says which streams
// are being captured, and keeps it no longer than the call; it lives here until the capture ends.
//
// Thread rule: any thread; several captures may be under way, on several devices.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapters/torch_allocator.hpp"
#include "adapters/torch_errors.hpp"

namespace penstock::adapters {
namespace {

struct Capture {
  int device;
  PoolId pool;
  StreamFilter filter;
};

struct Captures {
  std::mutex mutex;
  std::vector<std::unique_ptr<Capture>> open;
};

Captures& captures() {
  static Captures* const made = new Captures;  // never destroyed, as the allocators are not
  return *made;
}

int32_t matches(std::uint64_t stream, void* user) {
  const StreamFilter& filter = static_cast<Capture*>(user)->filter;
  return filter == nullptr || filter(reinterpret_cast<CUstream_st*>(stream)) ? 1 : 0;
}

[[noreturn]] void raise_pool_error(const char* what) {
  raise_runtime_error(std::string("Penstock: ") + what + ": " + penstock_last_error());
}

}  // namespace
}  // namespace penstock::adapters

using namespace penstock::adapters;  // NOLINT(google-build-using-namespace)

extern "C" {

void penstock_torch_begin_pool(int device, PoolId pool, StreamFilter filter) {
  penstock_allocator* const allocator = need_allocator(device);
  auto capture = std::make_unique<Capture>(Capture{device, pool, std::move(filter)});
  if (penstock_pool_begin(allocator, pool.first, pool.second, matches, capture.get()) != 0) {
    raise_pool_error("a private pool cannot begin");
  }
  const std::lock_guard lock(captures().mutex);
  captures().open.push_back(std::move(capture));
}

void penstock_torch_end_pool(int device, PoolId pool) {
  penstock_allocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  const bool ended = penstock_pool_end(allocator, pool.first, pool.second) == PENSTOCK_OK;
  const std::lock_guard lock(captures().mutex);
  auto& open = captures().open;
  for (auto each = open.begin(); each != open.end(); ++each) {
    if ((*each)->device != device || (*each)->pool != pool) continue;
    open.erase(each);
    break;
  }
  if (!ended) raise_pool_error("a private pool cannot end");
}

void penstock_torch_release_pool(int device, PoolId pool) {
  penstock_allocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  if (penstock_pool_release(allocator, pool.first, pool.second) != PENSTOCK_OK) {
    raise_pool_error("a private pool cannot be released");
  }
}

}  // extern "C"
