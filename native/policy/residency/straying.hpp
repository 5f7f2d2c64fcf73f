// SPDX-License-Identifier: Apache-2.0
// How far a program has left its plan, and what is left to pages that the plan does not know. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock::policy::residency {

// Chosen on recordings of generation and training under penstock run; not swept.
struct StrayingOptions {
  std::int64_t against = 8;  // a use against the plan weighs as much as so many with it
  std::int64_t least = 64;   // with less than this no plan is left for none
  std::int64_t rounds = 2;   // nor with less than so many of its iterations
  // With this another one that is known is taken, after four uses.  It has its pages elsewhere, so
  // that it is not worth moving for one that is little different.
  std::int64_t lost = 32;
  // At most one slot in so many is left to pages that the plan does not know.  Where those are more
  // (all gradients of a training step), room is lacking either way: a slot saves a load or two an
  // iteration on both sides, and what is planned comes ahead of its use.
  std::int32_t share_of_others = 2;
};

class Straying {
 public:
  explicit Straying(const StrayingOptions& options = {}) : options_(options) {}

  void reset() { strayed_ = 0; }
  void follows() { strayed_ = std::max<std::int64_t>(0, strayed_ - 1); }
  void goes_against() { strayed_ += options_.against; }
  [[nodiscard]] bool none() const { return strayed_ == 0; }
  [[nodiscard]] bool lost() const { return strayed_ >= options_.lost; }
  // The plan, of so many steps, is to be left.
  [[nodiscard]] bool over(std::int64_t steps) const {
    return strayed_ > std::max(options_.least, options_.rounds * steps);
  }
  // What is left to other pages from here on, where so many slots were lacking.
  [[nodiscard]] std::int32_t reserve(std::int32_t reserve, std::int32_t lacking,
                                     std::int32_t slots) const {
    return std::min(reserve + lacking, slots / options_.share_of_others);
  }

 private:
  StrayingOptions options_;
  std::int64_t strayed_ = 0;
};

}  // namespace penstock::policy::residency
