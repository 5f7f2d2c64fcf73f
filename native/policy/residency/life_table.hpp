// SPDX-License-Identifier: Apache-2.0
// How long a page stays unused whose next use nobody foresees: as long as others did that were as
// old and as often used, by a life table (Cutler and Ederer, Maximum utilization of the life table
// method in analyzing survival, 1958).  Of each class of age and interval it has how many pages
// were used there and how long pages waited there; what is left of a page's wait is the mean over
// its class and the later ones.  Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::policy::residency {

class LifeTable {
 public:
  using Position = std::int64_t;  // a number of uses, of any page

  LifeTable() { untold_.fill(kAges); }
  // A page of that age, and with that interval between its uses before, was used.
  void used(Position age, Position interval);
  // One was not, for so many uses.
  void waited(Position age, Position interval, Position uses);
  // left() is by all that was noted so far.
  void tell();
  // How many uses such a page will not be needed for.
  [[nodiscard]] Position left(Position age, Position interval) const;

 private:
  // Intervals are told apart by their doublings, ages by halves of those; up to 2^16.
  static constexpr std::size_t kIntervals = 18, kAges = 34;
  struct Class {
    Position used = 0;
    Position waited = 0;
    double left = 0;
  };
  using Row = std::array<Class, kAges>;

  Class& changed(Position age, Position interval);

  std::array<Row, kIntervals> rows_{};
  std::array<std::size_t, kIntervals> untold_{};  // so many classes' left is to be told anew
};

}  // namespace penstock::policy::residency
