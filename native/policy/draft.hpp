// SPDX-License-Identifier: Apache-2.0
// Complete, valid plans for one sequence and pool, each by one way of choosing what to keep:
// select gaps, join them into spans, give the spans slots.  schedule() compares them.
#pragma once

#include <optional>
#include <vector>

#include "policy/schedule.hpp"
#include "policy/selection.hpp"
#include "policy/sequence.hpp"
#include "policy/spans.hpp"

namespace penstock::policy {

class Drafts {
 public:
  // The sequence must be valid, outlive the object, and fit `slots`.  With times the streamed pages
  // are shared out in proportion to the steps' compute_ms, because copies hide behind it; else in
  // proportion to the steps' sizes.
  Drafts(const Sequence& sequence, std::int32_t slots, bool times);

  [[nodiscard]] bool everything_fits() const { return index_.used_pages() <= slots_; }
  [[nodiscard]] Plan keep_everything() const;

  // Pages that are used, left and used again in an iteration: without them of_gaps() and of_pages()
  // are the same.
  [[nodiscard]] bool has_loops() const;

  // By select_pages() and select_gaps(), with `look_ahead` slots left for copies in flight, fewer
  // where the pool is small.
  [[nodiscard]] Plan of_pages(std::int32_t look_ahead) const;
  [[nodiscard]] Plan of_gaps(std::int32_t look_ahead) const;

  // By select_lru_gaps(): never more loads than LRU, if the slots may turn where they have to.
  [[nodiscard]] Plan like_lru(bool may_turn) const;

 private:
  template <class Select>
  [[nodiscard]] Plan draft(std::int32_t look_ahead, const Select& select) const;
  [[nodiscard]] Plan with_fixed_slots(Spans spans) const;
  [[nodiscard]] Plan with_turning_slots(Spans spans) const;
  [[nodiscard]] std::int32_t stream_slots(const Spans& spans) const;
  [[nodiscard]] Plan finish(Spans spans, std::vector<SlotId> turn) const;
  void keep_lone_pages(Plan& plan) const;

  const Sequence& sequence_;
  UseIndex index_;
  std::int32_t slots_;
  std::int32_t smallest_;
  std::vector<double> weight_;  // by step
};

}  // namespace penstock::policy
