// SPDX-License-Identifier: Apache-2.0
// A set that any thread may ask and change.
#pragma once

#include <mutex>
#include <set>

namespace penstock::driver::cuda {

template <class Member>
class Members {
 public:
  bool add(Member member) {  // false: it was there
    const std::lock_guard lock(mutex_);
    return members_.insert(member).second;
  }
  bool remove(Member member) {
    const std::lock_guard lock(mutex_);
    return members_.erase(member) == 1;
  }
  bool has(Member member) const {
    const std::lock_guard lock(mutex_);
    return members_.count(member) == 1;
  }

 private:
  mutable std::mutex mutex_;
  std::set<Member> members_;
};

}  // namespace penstock::driver::cuda
