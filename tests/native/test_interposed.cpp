// SPDX-License-Identifier: Apache-2.0
// The window of addresses that the proxy compares with: whoever widens it, nobody's part is lost.
#include <random>
#include <thread>
#include <vector>

#include "api/interposed.hpp"
#include "doctest/doctest.h"

namespace penstock::testing {

TEST_CASE("window: devices that widen it at once lose nobody's addresses") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::atomic<std::uint64_t> begin{0};
    std::atomic<std::uint64_t> end{0};
    std::atomic<int> lost{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(seed * 3 + t);
        std::uint64_t low = (1u << 20) + random() % 1000;
        std::uint64_t high = low + 1;
        while (!go) {
        }
        for (int i = 0; i < 200; ++i) {
          low -= random() % 50;
          high += random() % 50;
          api::widen(begin, end, low, high);
          if (begin > low || end < high) ++lost;
        }
      });
    }
    go = true;
    for (std::thread& thread : threads) thread.join();
    CHECK(lost == 0);
  }
}

}  // namespace penstock::testing
