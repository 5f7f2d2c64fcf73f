// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/period.hpp"

namespace penstock::policy::learning {

bool Period::feed(Use use) {
  if (history_.size() >= kMost) forget();
  const auto here = static_cast<std::int64_t>(history_.size());
  const auto [found, first] = latest_.try_emplace(use, -1);
  const std::int64_t former = found->second;
  history_.push_back(use);
  before_.push_back(former);
  found->second = here;
  holding_.clear();
  int tried = 0;
  for (std::int64_t at = former; at >= 0 && tried < kCandidates; ++tried) {
    const auto period = static_cast<std::size_t>(here - at);
    Run& run = runs_[period];
    run.length = run.end == static_cast<std::size_t>(here) ? run.length + 1 : 1;
    run.end = static_cast<std::size_t>(here) + 1;
    if (run.length >= period) holding_.push_back(period);
    at = before_[static_cast<std::size_t>(at)];
  }
  period_ = holding_.empty() ? 0 : holding_.front();
  // Periods that broke off are forgotten now and then.
  if (runs_.size() > 4096) {
    std::erase_if(runs_, [&](const auto& entry) {
      return entry.second.end != static_cast<std::size_t>(here) + 1;
    });
  }
  return period_ > 0;
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
