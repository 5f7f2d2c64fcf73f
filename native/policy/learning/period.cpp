// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/period.hpp"

#include <algorithm>

namespace penstock::policy::learning {

bool Period::feed(Use use) {
  if (history_.size() >= kMost) forget();
  const std::size_t here = history_.size();
  const auto former = latest_.try_emplace(use, -1).first;
  history_.push_back(use);
  before_.push_back(former->second);
  // Those that held so far go on or break off.
  std::erase_if(runs_, [&](Run& run) {
    ++run.length;
    return history_[here - run.period] != use;
  });
  int tried = 0;
  for (std::int64_t at = former->second; at >= 0 && tried < kCandidates; ++tried) {
    const std::size_t period = here - static_cast<std::size_t>(at);
    const bool known =
        std::ranges::any_of(runs_, [period](const Run& run) { return run.period == period; });
    if (!known && runs_.size() < kMostRuns) runs_.push_back({period, repeated(period)});
    at = before_[static_cast<std::size_t>(at)];
  }
  former->second = static_cast<std::int64_t>(here);
  holding_.clear();
  for (const Run& run : runs_) {
    if (run.length >= run.period) holding_.push_back(run.period);
  }
  std::ranges::sort(holding_);
  period_ = holding_.empty() ? 0 : holding_.front();
  return period_ > 0;
}

// How many of the last uses are what they were a period before; more than a period does not count.
std::size_t Period::repeated(std::size_t period) const {
  const std::size_t size = history_.size();
  const std::size_t most = std::min(period, size - period);
  std::size_t count = 0;
  while (count < most && history_[size - 1 - count] == history_[size - 1 - count - period]) ++count;
  return count;
}

std::vector<Period::Use> Period::order() const { return last(period_); }

std::vector<Period::Use> Period::last(std::size_t count) const {
  return {history_.end() - static_cast<std::ptrdiff_t>(count), history_.end()};
}

void Period::forget() {
  dropped_ += history_.size();
  clear();
}

void Period::clear() {
  history_.clear();
  before_.clear();
  latest_.clear();
  runs_.clear();
  holding_.clear();
  period_ = 0;
}

}  // namespace penstock::policy::learning
