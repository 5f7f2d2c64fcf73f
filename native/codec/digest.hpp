// SPDX-License-Identifier: Apache-2.0
// 64 bits that tell pieces of memory apart, at the speed of memory: four sums, each over every
// fourth word, so that no multiplication waits for the one before.  Against damage, not malice.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace penstock::codec {

class Digest {
 public:
  static constexpr std::size_t kStride = 32;

  explicit Digest(std::size_t size) : all_(size) {}
  // The next bytes; all but the last in whole strides.
  void add(std::span<const std::byte> bytes) {
    std::size_t at = 0;
    for (; at + kStride <= bytes.size(); at += kStride) {
      for (std::size_t lane = 0; lane < sums_.size(); ++lane) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at + 8 * lane, 8);
        sums_[lane] = mix(sums_[lane], word);
      }
    }
    for (; at < bytes.size(); ++at) all_ = mix(all_, std::to_integer<std::uint64_t>(bytes[at]));
  }
  [[nodiscard]] std::uint64_t value() const {
    std::uint64_t all = all_;
    for (const std::uint64_t sum : sums_) all = mix(all, sum);
    return all ^ (all >> 32);
  }

 private:
  static std::uint64_t mix(std::uint64_t sum, std::uint64_t word) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    return std::rotl((sum ^ word) * kOdd, 29);
  }
  std::array<std::uint64_t, 4> sums_{1, 2, 3, 4};
  std::uint64_t all_;
};

inline std::uint64_t digest(std::span<const std::byte> bytes) {
  Digest digest(bytes.size());
  digest.add(bytes);
  return digest.value();
}

}  // namespace penstock::codec
