// SPDX-License-Identifier: Apache-2.0
#include "policy/residency/life_table.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace penstock::policy::residency {

namespace {

// A class forgets half of what it knows after so many uses.  Simulated with 16, 32 and 64 on eight
// programs whose experts a router chooses: up to 1.04 times as long (benchmarks/results/simulate/
// life-table.txt).
constexpr LifeTable::Position kMost = 256;

std::size_t interval_class(LifeTable::Position interval) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(interval)));
}
std::size_t age_class(LifeTable::Position age) {
  if (age <= 1) return age > 0 ? 1 : 0;
  const auto value = static_cast<std::uint64_t>(age);
  const auto width = static_cast<std::size_t>(std::bit_width(value));
  return 2 * width - 2 + (value >> (width - 2) & 1);
}
// Where the nth class of intervals begins, and of ages.
constexpr double interval_of(std::size_t nth) {
  return static_cast<double>((std::uint64_t{1} << nth) / 2);
}
constexpr double age_of(std::size_t nth) {
  if (nth < 2) return static_cast<double>(nth);
  const auto doubling = static_cast<double>(std::uint64_t{1} << nth / 2);
  return nth % 2 == 0 ? doubling : 1.5 * doubling;
}

}  // namespace

void LifeTable::used(Position age, Position interval) {
  Class& found = changed(age, interval);
  if (++found.used >= kMost) found = {found.used / 2, found.waited / 2};
}

void LifeTable::waited(Position age, Position interval, Position uses) {
  changed(age, interval).waited += uses;
}

LifeTable::Class& LifeTable::changed(Position age, Position interval) {
  const std::size_t row = std::min(interval_class(interval), kIntervals - 1);
  const std::size_t at = std::min(age_class(age), kAges - 1);
  untold_[row] = std::max(untold_[row], at + 1);
  return rows_[row][at];
}

LifeTable::Position LifeTable::left(Position age, Position interval) const {
  const auto& row = rows_[std::min(interval_class(interval), kIntervals - 1)];
  return static_cast<Position>(row[std::min(age_class(age), kAges - 1)].left);
}

void LifeTable::tell() {
  for (std::size_t nth = 0; nth < kIntervals; ++nth) {
    Row& row = rows_[nth];
    const std::size_t ages = std::exchange(untold_[nth], 0);
    double left = ages < kAges ? row[ages].left : 0;  // where the next class begins
    for (std::size_t age = ages; age-- > 0;) {
      Class& found = row[age];
      const double from = age_of(age), width = age_of(age + 1) - from;
      // One page more, that waits as long as it is old or was between its uses: the mean of both.
      const double guess = 1 + (from + width / 2 + interval_of(nth)) / 2;
      const double uses = static_cast<double>(found.used) + 1;
      const double waited = static_cast<double>(found.waited) + guess;
      // The rate is uses / waited; of those that come here 1 / (1 + rate * width) stay.
      const double stays = age + 1 == kAges ? 0 : waited / (waited + uses * width);
      left = found.left = (1 - stays) * waited / uses + stays * left;
    }
  }
}

}  // namespace penstock::policy::residency
