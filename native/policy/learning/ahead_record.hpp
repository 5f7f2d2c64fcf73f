// SPDX-License-Identifier: Apache-2.0
// Of the pages that came ahead of their use, how many were used before they had to leave.  Where a
// program's data choose its pages, what is foreseen and missing comes true far less often than what
// is foreseen and there: what was chosen of late stayed.  A page that comes in vain costs the link
// its time, and another page its place.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy::learning {

// Simulated on eighteen programs within four budgets (benchmarks/results/simulate/life-table.txt):
// with three quarters for `least` loops take up to 1.13 times as long; with 8 for `probe`, the
// mixtures of experts up to 1.04 times; 16 to 128 for the latest are alike, but 32 pages in vain,
// as where a phase ends, leave the share above `least` from 64 on.
struct AheadOptions {
  double least = 0.5;        // the share that has to be used
  std::uint32_t probe = 16;  // below it, one in so many comes all the same, and tells
  double latest = 1.0 / 64;  // what the latest page counts for in the share
};

class AheadRecord {
 public:
  explicit AheadRecord(const AheadOptions& options = {}) : options_(options) {}

  void cover(PageId pages) {
    if (nth(pages) > ahead_.size()) ahead_.resize(nth(pages));
  }
  void came(PageId page) { ahead_[nth(page)] = true; }
  void used(PageId page) { over(page, 1); }
  void left(PageId page) { over(page, 0); }
  // Whether one that is foreseen and missing is to come.
  [[nodiscard]] bool next_comes() {
    return share_ >= options_.least || ++kept_back_ % options_.probe == 0;
  }

 private:
  void over(PageId page, double used) {
    if (!ahead_[nth(page)]) return;
    ahead_[nth(page)] = false;
    share_ += (used - share_) * options_.latest;
  }

  AheadOptions options_;
  std::vector<bool> ahead_;  // by page: it came ahead, and has neither been used nor left
  double share_ = 1;
  std::uint32_t kept_back_ = 0;
};

}  // namespace penstock::policy::learning
