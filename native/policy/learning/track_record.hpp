// SPDX-License-Identifier: Apache-2.0
// Of which pages it comes true what is foreseen of them.  A loop's pages are used where they were
// in the round before; those that its data choose, such as experts by a router, are not, and what
// is foreseen between two of them says nothing of either.  Where as a rule all comes true, a page
// is trusted unless its own record is poor; else only one whose own is good.  Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy::learning {

// Simulated on recordings of thirteen programs within four budgets (constants.json of
// benchmarks/results/simulate, `sum` in sixteenths): with 48 for `sum` an iteration takes up
// to 1.33 times as long, with 56 up to 1.12, with another value of the others up to 1.11, and
// hardly less for any program; 52 up to 1.06 times as long as 53, and 54 up to 1.02.
struct TrackRecordOptions {
  std::int64_t lead = 8;    // so many uses ahead it is noted what is foreseen
  std::int64_t uses = 128;  // it has to come within so many behind that
  std::int64_t back = 64;   // or so many before it was noted: a place may lag behind
  int sum = 53;             // of a page's share that came true and all pages', in 32nds
  int of_page = 8;          // the share that the latest has in a page's record
  int of_all = 64;          // and in that of all
};

class TrackRecord {
 public:
  using Position = std::int64_t;  // how many uses there were before
  static constexpr PageId kNobody = -1;

  explicit TrackRecord(const TrackRecordOptions& options = {})
      : options_(options), noted_(static_cast<std::size_t>(options.lead + options.uses)) {}

  void cover(PageId pages) {
    if (nth(pages) > right_.size()) right_.resize(nth(pages), kUnknown);
  }
  [[nodiscard]] Position lead() const { return options_.lead; }

  // The page is foreseen, or kNobody is, `lead` uses from now.  What was noted as long ago as it
  // takes to tell is judged: last_used says when a page was used last.
  void note(PageId page, Position now, const auto& last_used) {
    Noted& noted = noted_[nth(now) % noted_.size()];
    if (noted.page != kNobody) {
      judge(noted.page, last_used(noted.page) >= noted.at - options_.back);
    }
    noted = {page, now};
  }

  [[nodiscard]] bool trusts(PageId page) const {
    const int right = right_[nth(page)];
    return (right == kUnknown ? all_ : right) + all_ >= kOne / 32 * options_.sum;
  }

 private:
  static constexpr int kOne = 1 << 12;
  static constexpr int kUnknown = -1;
  struct Noted {
    PageId page = kNobody;
    Position at = 0;
  };

  void judge(PageId page, bool came) {
    const int share = came ? kOne : 0;
    int& right = right_[nth(page)];
    if (right == kUnknown) right = all_;
    right += (share - right) / options_.of_page;
    all_ += (share - all_) / options_.of_all;
  }

  TrackRecordOptions options_;
  std::vector<Noted> noted_;  // a ring, by position
  std::vector<int> right_;    // by page
  int all_ = kOne;
};

}  // namespace penstock::policy::learning
