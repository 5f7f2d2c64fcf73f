// SPDX-License-Identifier: Apache-2.0
// Finds the iteration in a stream of uses that nobody marked: the shortest p such that the last p
// uses are the p before them.  Pure; feed() costs some hundred comparisons at most, as a rule.
//
// A program's loop repeats its whole order of uses, while parts of it (layers) touch different
// pages, so that a period that covers more than one sweep is found at the end of its second round
// and not before.  Repetitions within an iteration (the same use several times) are periods too:
// the caller says how long a period has to be worth planning by the pages that it touches.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::policy::learning {

class Period {
 public:
  using Use = std::int32_t;

  // The use that comes next; true if the last period() uses repeat those before them.
  bool feed(Use use);
  [[nodiscard]] std::size_t period() const { return period_; }
  // The last period() uses, the oldest first.
  [[nodiscard]] std::vector<Use> order() const;
  // All periods that hold now, the shortest first: a longer one may be the iteration.
  [[nodiscard]] const std::vector<std::size_t>& holding() const { return holding_; }
  [[nodiscard]] std::vector<Use> last(std::size_t count) const;
  [[nodiscard]] std::size_t fed() const { return dropped_ + history_.size(); }
  [[nodiscard]] std::size_t size() const { return history_.size(); }  // that last() can give
  void clear();
  void forget();  // all but how many there were

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
  [[nodiscard]] std::size_t repeated(std::size_t period) const;

  std::vector<Use> history_;
  std::vector<std::int64_t> before_;  // the index of the same use's last occurrence, or -1
  std::unordered_map<Use, std::int64_t> latest_;
  std::vector<Run> runs_;
  std::vector<std::size_t> holding_;
  std::size_t period_ = 0;
  std::size_t dropped_ = 0;
};

}  // namespace penstock::policy::learning
