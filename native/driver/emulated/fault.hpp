// SPDX-License-Identifier: Apache-2.0
// Fault injection of the emulated GPU: counts the calls that can fail and fails the Nth of them
// before it has done anything.  Tear-down calls never come here, so that clean-up always can run.
// Thread rule: any thread; with several threads it is the Nth call in the order they get here.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.hpp"
#include "driver/text.hpp"

namespace penstock::driver {

class HostFault {
 public:
  explicit HostFault(std::int64_t fail_at_call) : fail_at_call_(fail_at_call) {}

  // Called first by every call that can fail; `code` is what such a failure would be in life.
  Status count(Code code = Code::kDriver) {
    const std::int64_t call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (call != fail_at_call_) return {};
    return {code, text("injected failure at call ", call)};
  }

  std::int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  const std::int64_t fail_at_call_;
  std::atomic<std::int64_t> calls_{0};
};

}  // namespace penstock::driver
