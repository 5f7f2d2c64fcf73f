// SPDX-License-Identifier: Apache-2.0
// Finds the iteration in a stream of uses that nobody marked: the shortest p such that the last p
// uses are the p before them.  Pure; feed() costs some hundred comparisons at most, as a rule.
//
// A program's loop repeats its whole order of uses, while parts of it (layers) touch different
// pages, so that a period that covers more than one sweep is found at the end of its second round
// and not before.  Repetitions within an iteration (the same use several times) are periods too:
// the caller says how long a period has to be worth planning by the pages that it touches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::policy::learning {

class Period {
 public:
  using Use = std::int32_t;

  // The use that comes next; true where a period holds.
  bool feed(Use use) {
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
    return !holding_.empty();
  }
  // All periods that hold now, the shortest first: a longer one may be the iteration.
  [[nodiscard]] const std::vector<std::size_t>& holding() const { return holding_; }
  // Uses, the oldest first.
  [[nodiscard]] std::vector<Use> last(std::size_t count) const {
    return {history_.end() - static_cast<std::ptrdiff_t>(count), history_.end()};
  }
  [[nodiscard]] std::size_t fed() const { return dropped_ + history_.size(); }
  [[nodiscard]] std::size_t size() const { return history_.size(); }  // that last() can give
  void clear() {
    history_.clear();
    before_.clear();
    latest_.clear();
    runs_.clear();
    holding_.clear();
  }
  // All but how many there were.
  void forget() {
    dropped_ += history_.size();
    clear();
  }

 private:
  // How many earlier occurrences of a use are taken for a former iteration's.  One that occurs more
  // often in an iteration finds no period, but breaks none off either.
  static constexpr int kCandidates = 16;
  static constexpr std::size_t kMostRuns = 256;
  static constexpr std::size_t kMost = 1 << 17;  // uses remembered

  struct Run {
    std::size_t period = 0;
    std::size_t length = 0;  // how many in a row repeated what was a period before
  };
  // How many of the last uses are what they were a period before; more than a period does not
  // count.
  [[nodiscard]] std::size_t repeated(std::size_t period) const {
    const std::size_t size = history_.size();
    const std::size_t most = std::min(period, size - period);
    std::size_t count = 0;
    while (count < most && history_[size - 1 - count] == history_[size - 1 - count - period])
      ++count;
    return count;
  }

  std::vector<Use> history_;
  std::vector<std::int64_t> before_;  // the index of the same use's last occurrence, or -1
  std::unordered_map<Use, std::int64_t> latest_;
  std::vector<Run> runs_;
  std::vector<std::size_t> holding_;
  std::size_t dropped_ = 0;
};

}  // namespace penstock::policy::learning
