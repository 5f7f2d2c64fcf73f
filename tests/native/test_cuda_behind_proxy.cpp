// SPDX-License-Identifier: Apache-2.0
// What Penstock itself asks of the driver under `penstock run`: nothing of it goes through the
// proxy's hooks.  Where libcuda.so.1 is no proxy this test says that it has tested nothing.
#include <dlfcn.h>

#include "conformance_bench.hpp"
#include "penstock/interpose.h"

namespace penstock::driver {
namespace {

TEST_CASE("CUDA: Penstock's own calls do not come back through the proxy") {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, PENSTOCK_PROXY_COUNTERS);
  if (found == nullptr) {
    MESSAGE("no proxy: nothing tested");
    return;
  }
  const auto get = reinterpret_cast<void (*)(penstock_proxy_counters*)>(found);
  penstock_proxy_counters before{};
  penstock_proxy_counters after{};
  before.struct_size = after.struct_size = sizeof(penstock_proxy_counters);
  get(&before);
  auto opened = open_cuda_driver(0);
  PENSTOCK_REQUIRE_OK(opened.status());
  Driver& driver = *opened.value();
  PENSTOCK_CHECK_OK(driver.memory_info().status());
  const auto chunk = driver.create_chunk(driver.info().granularity, Place::kDevice);
  PENSTOCK_REQUIRE_OK(chunk.status());
  PENSTOCK_CHECK_OK(driver.release_chunk(chunk.value()));
  get(&after);
  CHECK(after.calls == before.calls);
  CHECK(after.foreign_bytes == before.foreign_bytes);
}

}  // namespace
}  // namespace penstock::driver
