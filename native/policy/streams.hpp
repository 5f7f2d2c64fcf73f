// SPDX-License-Identifier: Apache-2.0
// Which of many pages to give up (to *stream*) so that the others can stay all around the cycle:
// the decision that a sweep consists of.
//
// With K pages kept all around, a step has room for capacity - K others; so the number to give up
// is least when no step streams many pages.  The largest number that any step has to bear is found
// by bisection, and below it the pages are shared out in proportion to the steps' weights: a large
// step (an embedding) keeps most of its pages and does not inflate the room that all steps pay for.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/sequence.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

// Pages that are needed at the same steps.
struct StreamGroup {
  std::vector<StepId> cover;          // the steps at which a streamed member takes a slot
  std::vector<UseIndex::Id> members;  // a use of each page, by page
  std::int32_t loads = 1;             // an iteration, of a streamed member
};

class Streams {
 public:
  // `others` is how many slots each step needs for pages that are in no group.
  Streams(const Sequence& sequence, const UseIndex& index, std::vector<StreamGroup> groups,
          std::vector<std::int32_t> others, std::int32_t capacity);

  // The members to give up; those that take the fewest loads first.  Of a group they are
  // neighbouring pages, so that copies can be merged.  Fewer than needed only when the capacity is
  // less than what a step needs with all of them given up.
  [[nodiscard]] std::vector<UseIndex::Id> choose(const std::vector<double>& step_weight) const;

 private:
  using Counts = std::vector<std::int32_t>;  // by group

  [[nodiscard]] std::int64_t wanted(std::int32_t level) const;
  [[nodiscard]] std::int32_t least_level() const;
  std::int64_t fill(std::int32_t level, const std::vector<double>* weight, Counts& taken) const;
  std::int64_t take(std::size_t group, std::int64_t count, std::int32_t level,
                    std::vector<std::int32_t>& load, Counts& taken) const;
  [[nodiscard]] std::int32_t room(std::size_t group, std::int32_t level,
                                  const std::vector<std::int32_t>& load) const;
  void choose_run(const StreamGroup& group, std::size_t count,
                  std::vector<UseIndex::Id>& chosen) const;

  const Sequence& sequence_;
  const UseIndex& index_;
  std::vector<StreamGroup> groups_;  // by loads, then size of cover, then first step
  std::vector<std::int32_t> others_;
  std::int32_t capacity_;
  std::int64_t members_ = 0;
};

}  // namespace penstock::policy
