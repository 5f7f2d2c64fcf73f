// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory of the emulated GPU: exactly the size asked for, page-aligned, with a
// page behind it that nobody may touch, and given back to the system when freed.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::driver {

class HostPageLocked {
 public:
  HostPageLocked() = default;
  ~HostPageLocked();
  HostPageLocked(const HostPageLocked&) = delete;
  HostPageLocked& operator=(const HostPageLocked&) = delete;

  Result<void*> allocate(Bytes size);  // the caller has checked capacity
  Status free(void* pointer);

  Bytes used() const { return used_; }
  std::int64_t size() const { return static_cast<std::int64_t>(allocations_.size()); }

 private:
  static void give_back(void* pointer, Bytes size);

  std::unordered_map<void*, Bytes> allocations_;
  Bytes used_ = 0;
};

}  // namespace penstock::driver
