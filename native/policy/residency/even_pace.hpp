// SPDX-License-Identifier: Apache-2.0
// Pages that come in ahead of their use one by one, evenly over the uses that are foreseen, beside
// those that come because there is room for them.  What is missing after the first repetition of a
// loop is one stretch of it, which the link needs longer for than the work there takes, and it
// rests at the others.  It spreads by which pages leave, a little in each repetition; this spreads
// it in the second.  Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock::policy::residency {

// Simulated on recordings of eight programs within four budgets (benchmarks/results/simulate/
// paced.txt): for good, or without a limit, programs whose pages are spread already take up to 7 %
// longer; with both, one takes 2 % longer, and none more.
struct EvenPaceOptions {
  std::int64_t turns = 4;      // it ends after as many uses as there are slots, times this
  std::size_t share = 20;      // of the slots, that pages ahead may take in this way
  std::size_t most_saved = 8;  // pages, where none could come
};

class EvenPace {
 public:
  explicit EvenPace(const EvenPaceOptions& options = {}) : options_(options) {}

  // So many uses were there since pages began to leave, among so many slots.  True: the caller
  // says now how much is missing(), for the uses from here on.
  bool come_to(std::int64_t uses, std::int64_t slots) {
    over_ = uses >= options_.turns * slots;
    most_ = static_cast<std::size_t>(slots) / options_.share;
    spare_ += static_cast<double>(uses - uses_) * rate_;
    spare_ = std::min(spare_, static_cast<double>(options_.most_saved));
    uses_ = uses;
    return !over_ && uses >= look_;
  }
  // Of so many foreseen uses, so many begin with a page that is not there.
  void missing(std::int64_t pages, std::int64_t foreseen) {
    rate_ = foreseen == 0 ? 0.0 : static_cast<double>(pages) / static_cast<double>(foreseen);
    look_ = uses_ + foreseen / kLooks + 1;
  }
  // How far it looks ahead.
  [[nodiscard]] std::int64_t reach(std::int64_t slots) const { return options_.turns * slots; }
  // Whether so many pages may come while so many that came ahead wait for their use.
  [[nodiscard]] bool due(std::size_t pages, std::size_t ahead) const {
    return !over_ && ahead < most_ && spare_ >= static_cast<double>(pages);
  }
  void came(std::size_t pages) { spare_ -= static_cast<double>(pages); }
  void none_came() { spare_ = 0; }

 private:
  static constexpr std::int64_t kLooks = 32;  // at what is missing, within its reach

  EvenPaceOptions options_;
  std::int64_t uses_ = 0, look_ = 0;
  std::size_t most_ = 0;
  double rate_ = 0, spare_ = 0;
  bool over_ = false;
};

}  // namespace penstock::policy::residency
