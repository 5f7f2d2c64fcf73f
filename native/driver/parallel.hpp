// SPDX-License-Identifier: Apache-2.0
// One piece of work after another on as many threads as the host has, the caller's among them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace penstock::driver {

// work(0) to work(count - 1), in any order.  `work` does not throw.
template <class Work>
void in_parallel(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  try {
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    const std::size_t wanted = std::min<std::size_t>(count, cores);
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(run);
  } catch (const std::system_error&) {  // fewer, then
  } catch (const std::bad_alloc&) {
  }
  run();
}

// Likewise, of work that may fail: one of the failures.
template <class Work>
Status try_in_parallel(std::size_t count, const Work& work) {
  std::atomic<bool> failed{false};
  Status failure;
  in_parallel(count, [&](std::size_t i) {
    Status status = work(i);
    if (!status.ok() && !failed.exchange(true)) failure = std::move(status);
  });
  return failure;
}

}  // namespace penstock::driver
