// SPDX-License-Identifier: Apache-2.0
// The driver's own objects of one kind, by address, with a size where they have one: for the live
// counts, for refusing what is not ours before libcuda would crash on it, and for the end.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/text.hpp"

namespace penstock::driver::cuda {

class CudaHandles {
 public:
  void add(std::uint64_t key, Bytes size = 0) {
    const std::lock_guard lock(mutex_);
    sizes_.insert_or_assign(key, size);
  }

  // kInvalidArgument where it is none of them; `call` begins the message.
  Status remove(const char* call, std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    if (sizes_.erase(key) == 1) return {};
    return invalid(call, ": this driver has made nothing at ", address_text(key));
  }

  bool contains_span(Addr address, Bytes size) const {
    const std::lock_guard lock(mutex_);
    auto found = sizes_.upper_bound(address);
    if (size == 0 || found == sizes_.begin()) return false;
    --found;
    const Bytes offset = address - found->first;
    return offset < found->second && size <= found->second - offset;
  }

  std::int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(sizes_.size());
  }

  std::vector<std::uint64_t> take_all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> keys;
    for (const auto& [key, size] : sizes_) keys.push_back(key);
    sizes_.clear();
    return keys;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Bytes> sizes_;
};

}  // namespace penstock::driver::cuda
