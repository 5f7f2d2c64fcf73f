// SPDX-License-Identifier: Apache-2.0
// A stream capture of the emulated GPU: what is given to its streams is kept instead of run, in the
// order of the calls, which is one that the graph's edges allow.  A capture that something broke
// keeps nothing more and yields no graph.
// Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "driver/emulated/driver.hpp"

namespace penstock::driver {

using HostWork = std::function<void()>;

class HostCapture {
 public:
  Status add(HostWork work) {
    const std::lock_guard lock(mutex_);
    if (!valid_) return broken();
    work_.push_back(std::move(work));
    return {};
  }
  void invalidate() {
    const std::lock_guard lock(mutex_);
    valid_ = false;
  }
  // Whether streams can still join it.
  bool under_way() const {
    const std::lock_guard lock(mutex_);
    return valid_;
  }
  Result<HostGraph> end() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(valid_, false)) return broken();
    return HostGraph(std::make_shared<std::vector<HostWork>>(std::move(work_)));
  }

 private:
  static Status broken() { return {Code::kDriver, "the capture has ended or was invalidated"}; }

  mutable std::mutex mutex_;
  bool valid_ = true;
  std::vector<HostWork> work_;
};

using HostCapturePtr = std::shared_ptr<HostCapture>;

}  // namespace penstock::driver
