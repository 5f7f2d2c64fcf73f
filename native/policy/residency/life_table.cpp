// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/life_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace penstock::policy::residency {

namespace {

// A class forgets half of what it knows after so many uses.  Simulated with 16, 32 and 64 on eight
// programs whose experts a router chooses: up to 1.04 times as long (benchmarks/results/simulate/
// life-table.txt).
constexpr LifeTable::Position kMost = 256;

// Where the nth class of intervals begins, and of ages.
std::size_t interval_class(LifeTable::Position interval) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(interval)));
}
double interval_of(std::size_t nth) {
  return nth == 0 ? 0 : std::ldexp(1.0, static_cast<int>(nth) - 1);
}
std::size_t age_class(LifeTable::Position age) {
  if (age <= 1) return age > 0 ? 1 : 0;
  const auto value = static_cast<std::uint64_t>(age);
  const auto width = static_cast<std::size_t>(std::bit_width(value));
  return 2 * width - 2 + (value >> (width - 2) & 1);
}
double age_of(std::size_t nth) {
  if (nth < 2) return static_cast<double>(nth);
  const double doubling = std::ldexp(1.0, static_cast<int>(nth) / 2);
  return nth % 2 == 0 ? doubling : 1.5 * doubling;
}

}  // namespace

void LifeTable::used(Position age, Position interval) {
  auto& ages = classes_[std::min(interval_class(interval), kIntervals - 1)];
  Class& found = ages[std::min(age_class(age), kAges - 1)];
  told_ = false;
  if (++found.used >= kMost) found = {found.used / 2, found.waited / 2};
}

void LifeTable::waited(Position age, Position interval, Position uses) {
  auto& ages = classes_[std::min(interval_class(interval), kIntervals - 1)];
  ages[std::min(age_class(age), kAges - 1)].waited += uses;
  told_ = false;
}

LifeTable::Position LifeTable::left(Position age, Position interval) const {
  const auto& ages = left_[std::min(interval_class(interval), kIntervals - 1)];
  return ages[std::min(age_class(age), kAges - 1)];
}

void LifeTable::tell() {
  if (std::exchange(told_, true)) return;
  for (std::size_t nth = 0; nth < kIntervals; ++nth) {
    double left = 0;  // where the next class begins
    for (std::size_t age = kAges; age-- > 0;) {
      const Class& found = classes_[nth][age];
      const double from = age_of(age), width = age_of(age + 1) - from;
      // One page more, that waits as long as it is old or was between its uses: the mean of both.
      const double guess = 1 + (from + width / 2 + interval_of(nth)) / 2;
      const double rate =
          (static_cast<double>(found.used) + 1) / (static_cast<double>(found.waited) + guess);
      const double stays =
          age + 1 == kAges ? 0 : 1 / (1 + rate * width);  // of those that come here
      left = (1 - stays) / rate + stays * left;
      left_[nth][age] = static_cast<Position>(left);
    }
  }
}

}  // namespace penstock::policy::residency
