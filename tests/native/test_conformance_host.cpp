// SPDX-License-Identifier: Apache-2.0
// The driver contract on the emulated GPU: at the granularity of a real one and at that of a page,
// with and without random delays in its streams.
#include "conformance.hpp"
#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {
namespace {

void keep_all_rules(const HostDriverOptions& options) {
  for (const conformance::Rule& rule : conformance::rules()) {
    SUBCASE(rule.name) {
      auto driver = open_host_driver(options);
      PENSTOCK_REQUIRE_OK(driver.status());
      rule.keep(*driver.value());
    }
  }
}

TEST_CASE("emulated GPU: keeps the driver contract") { keep_all_rules({.capacity = kGiB}); }

TEST_CASE("emulated GPU: keeps the driver contract when work is late") {
  keep_all_rules({.capacity = kGiB, .seed = 7, .max_delay_us = 300});
}

TEST_CASE("emulated GPU: keeps the driver contract in pages of 64 KiB") {
  keep_all_rules({.capacity = kGiB, .granularity = 64 * kKiB, .seed = 8, .max_delay_us = 50});
}

}  // namespace
}  // namespace penstock::driver
