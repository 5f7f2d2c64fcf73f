// SPDX-License-Identifier: Apache-2.0
// bf16 values as they are in trained models: normal, of 0.02.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

namespace penstock::testing {

inline void draw_weights(std::span<std::byte> to, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::size_t at = 0; at + 2 <= to.size(); at += 2) {
    const float drawn = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &drawn, 4);
    const auto value = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(&to[at], &value, 2);
  }
}

}  // namespace penstock::testing
