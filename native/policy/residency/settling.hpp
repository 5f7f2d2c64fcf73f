// SPDX-License-Identifier: Apache-2.0
// Which blocks are settled: work came back to them after a pause, again and again, as it does to a
// weight and not to a cache that is copied to a new place for every token.  Pure.
#pragma once

#include <cstdint>

namespace penstock::policy::residency {

// Chosen on recordings of GPT-2 XL and GPT-3 6.7B; not swept.
struct Settling {
  std::uint64_t pause = 24;  // pieces of work, more than a layer's worth
  std::uint32_t returns = 2;
};

// Work touches a block, as piece `now`: how often it has come back by then.
[[nodiscard]] constexpr std::uint32_t returns_after(std::uint64_t touched, std::uint64_t now,
                                                    std::uint32_t returns,
                                                    const Settling& settling = {}) {
  return returns + (touched + settling.pause < now ? 1 : 0);
}

[[nodiscard]] constexpr bool settled(std::uint32_t returns, const Settling& settling = {}) {
  return returns >= settling.returns;
}

}  // namespace penstock::policy::residency
