// SPDX-License-Identifier: Apache-2.0
// The driver contract on a real GPU, where there is one.  One driver serves all rules, because
// making and destroying a primary context takes longer than all of them together.
#include "conformance.hpp"
#include "conformance_bench.hpp"

namespace penstock::driver {
namespace {

TEST_CASE("CUDA: keeps the driver contract") {
  static const auto driver = open_cuda_driver(0);
  if (!driver.ok()) {
    REQUIRE_MESSAGE(driver.status().code() == Code::kNoDevice, driver.status().message());
    MESSAGE("no CUDA device: skipped (" << driver.status().message() << ")");
    return;
  }
  for (const conformance::Rule& rule : conformance::rules()) {
    SUBCASE(rule.name) { rule.keep(*driver.value()); }
  }
  const LiveCounts none;
  CHECK(driver.value()->live() == none);
}

TEST_CASE("CUDA: a device that is not there is no device") {
  for (const int ordinal : {-1, 1000}) {
    const auto driver = open_cuda_driver(ordinal);
    PENSTOCK_CHECK_CODE(driver.status(), Code::kNoDevice);
  }
}

}  // namespace
}  // namespace penstock::driver
