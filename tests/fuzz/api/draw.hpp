// SPDX-License-Identifier: Apache-2.0
// What is drawn for one input, all of it from the input's seed, so that a finding is found again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace penstock::fuzz {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kMiB = 1 << 20;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  // Below `end`; 0 for 0.
  std::uint64_t below(std::uint64_t end) { return end == 0 ? 0 : engine_() % end; }
  bool chance(double of) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < of; }
  template <class T>
  T& one_of(std::vector<T>& values) {
    return values[below(values.size())];
  }
  // At the ends of what a number can be.
  std::uint64_t odd() {
    static constexpr std::uint64_t kNone = 0;
    static constexpr std::array kOdd = {kNone,
                                        kNone + 1,
                                        kNone + 2,
                                        kNone + 511,
                                        kNone + 4095,
                                        kNone + 4096,
                                        kNone + (1U << 20),
                                        kNone + (2 << 20),
                                        kNone + ~0U,
                                        kNone + (1U << 31),
                                        kNone + (~0U >> 1),
                                        (kNone + 1) << 32,
                                        (kNone + 1) << 40,
                                        (kNone + 1) << 47,
                                        (kNone + 1) << 58,
                                        (kNone + 1) << 62,
                                        (kNone + 1) << 63,
                                        ~kNone,
                                        ~kNone - 511,
                                        ~kNone - 4095};
    return kOdd[below(kOdd.size())];
  }
  // Of bytes, without those of which the books alone would take minutes; and mostly without those
  // that take the time of a hundred inputs.
  std::uint64_t odd_bytes(std::uint64_t mostly = kMost) {
    const std::uint64_t bytes = odd();
    return bytes >> 47 != 0 ? bytes : std::min(bytes, chance(0.02) ? kMost : mostly);
  }
  std::uint64_t odd_or(double of, std::uint64_t usual) { return chance(of) ? odd() : usual; }
  double odd_real() {
    static constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr std::array kOdd = {
        0.0,  -1.0, 1.0,       1e-300,     1e300,  -0.0,
        55.0, 1e9,  kInfinity, -kInfinity, 5e-324, std::numeric_limits<double>::quiet_NaN()};
    return kOdd[below(kOdd.size())];
  }
  // A struct of which the caller knows less, or nothing.
  template <class T>
  void shorten(T& value, double of) {
    value.struct_size = chance(of) ? below(sizeof(T)) : sizeof(T);
  }

 private:
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  std::mt19937_64 engine_;
};

// A promise that is broken ends the process, as a sanitizer would.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

// Each makes one input and hands it in; how many calls of the C API that were.
std::uint64_t simulate(Draw& draw);
std::uint64_t replay(Draw& draw);
std::uint64_t pager(Draw& draw);
std::uint64_t managed(Draw& draw);
std::uint64_t allocator(Draw& draw);
std::uint64_t interposed(Draw& draw);

}  // namespace penstock::fuzz
