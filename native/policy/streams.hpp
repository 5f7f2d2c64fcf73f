// SPDX-License-Identifier: Apache-2.0
// The part of the selection that matters for a sweep: pages whose gap lasts half the cycle or more.
// Seen from the other side such a page is needed during a short arc of steps only, mostly one, and
// the question is which pages to give up (to *stream*) so that the others can stay all around.
//
// With K pages kept all around, a step has room for capacity - K others; so the number to give up
// is least when no step streams many pages.  The largest number that a step may stream is found by
// bisection, and below it the pages are shared out in proportion to the steps' weights: a large
// step (an embedding) keeps most of its pages and does not inflate the room that all steps pay for.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/sequence.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

class Streams {
 public:
  // `taken` is how many slots each step needs with none of these gaps kept.
  Streams(const Sequence& sequence, const UseIndex& index, const std::vector<UseIndex::Id>& gaps,
          const std::vector<std::int32_t>& taken, std::int32_t capacity);

  // The gaps to give up.  Within a step they are neighbouring pages, so that copies can be merged.
  [[nodiscard]] std::vector<UseIndex::Id> choose(const std::vector<double>& weight) const;

 private:
  // The steps outside of a gap, its two uses included.
  struct Arc {
    UseIndex::Id gap;
    StepId first;
    StepId length;
  };

  [[nodiscard]] std::int64_t wanted(std::int32_t level) const;
  [[nodiscard]] bool possible(std::int32_t level) const;
  [[nodiscard]] std::int32_t least_level() const;
  [[nodiscard]] std::vector<std::int32_t> single_limits(std::int32_t level) const;
  [[nodiscard]] std::vector<UseIndex::Id> choose_long(std::int32_t level, std::int64_t count,
                                                      bool spread) const;
  void choose_run(std::size_t step, std::size_t count, std::vector<UseIndex::Id>& chosen) const;

  const Sequence& sequence_;
  const UseIndex& index_;
  std::int32_t capacity_;
  std::int64_t gaps_;
  std::vector<std::int32_t> others_;  // by step: taken by pages not in question, if all
                                      // of those in question were kept; may be < 0
  std::vector<std::vector<UseIndex::Id>> single_;  // by step: gaps of pages needed there alone
  std::vector<Arc> long_;                          // the others, shortest first
};

}  // namespace penstock::policy
