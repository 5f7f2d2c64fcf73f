// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/iterations.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace penstock::policy::learning {
namespace {

// So many of the proposals that held longest are looked at closely; each costs one pass.
constexpr std::size_t kProposals = 32;

// The longest stretch in which every use is what it was a period before, with that period in front.
Iterations stretch_of(std::span<const Period::Use> uses, std::size_t period) {
  Iterations best{0, period, 0};
  std::size_t longest = 0;
  std::size_t begin = 0;
  for (std::size_t i = period; i <= uses.size(); ++i) {
    const bool goes_on = i < uses.size() && uses[i] == uses[i - period];
    if (goes_on) continue;
    if (i - begin > longest && i - begin >= 2 * period) {
      longest = i - begin;
      best = {begin, period, longest / period};
    }
    begin = i + 1 - period;
  }
  return best;
}

}  // namespace

Iterations find_iterations(std::span<const Period::Use> uses) {
  Period learner;
  std::map<std::size_t, std::size_t> held;  // period -> at how many uses it held
  for (const Period::Use use : uses) {
    if (!learner.feed(use)) continue;
    for (const std::size_t period : learner.holding()) ++held[period];
  }
  std::vector<std::pair<std::size_t, std::size_t>> ranked;  // uses explained, period
  for (const auto& [period, count] : held) ranked.emplace_back(count + 2 * period, period);
  std::sort(ranked.rbegin(), ranked.rend());
  if (ranked.size() > kProposals) ranked.resize(kProposals);
  Iterations best;
  std::size_t most = 0;
  for (const auto& [rank, period] : ranked) {
    const Iterations found = stretch_of(uses, period);
    const std::size_t explained = found.count * period;
    const bool nearly = explained * 10 >= most * 9 && period < best.period;
    if (explained * 9 > most * 10 || nearly || best.period == 0) {
      if (found.count == 0) continue;
      best = found;
      most = std::max(most, explained);
    }
  }
  return best;
}

}  // namespace penstock::policy::learning
