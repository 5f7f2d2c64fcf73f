// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/quota.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::policy {
namespace {

// A weight of 0 would never get a share, not even when all others are at their limits.
std::vector<double> positive(const std::vector<double>& weight) {
  const double most = weight.empty() ? 0 : *std::max_element(weight.begin(), weight.end());
  std::vector<double> result(weight);
  for (double& w : result) w = std::max(w, most > 0 ? most * 1e-6 : 1.0);
  return result;
}

// The level at which sum of min(limit, level * weight) = total.
double find_level(const std::vector<std::int32_t>& limit, const std::vector<double>& weight,
                  std::int64_t total) {
  std::vector<std::size_t> order(limit.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto full_at = [&](std::size_t i) { return limit[i] / weight[i]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return full_at(a) < full_at(b); });
  double left = static_cast<double>(total);
  double weight_left = std::accumulate(weight.begin(), weight.end(), 0.0);
  for (const std::size_t i : order) {
    if (full_at(i) * weight_left >= left) return left / weight_left;
    left -= limit[i];
    weight_left -= weight[i];
  }
  return order.empty() ? 0 : full_at(order.back());
}

}  // namespace

std::vector<std::int32_t> share_out(const std::vector<std::int32_t>& limit,
                                    const std::vector<double>& weight, std::int64_t total) {
  total = std::min(total, std::accumulate(limit.begin(), limit.end(), std::int64_t{0}));
  const std::vector<double> weights = positive(weight);
  const double level = find_level(limit, weights, total);
  std::vector<std::int32_t> share(limit.size(), 0);
  double exact = 0;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < limit.size(); ++i) {
    exact += std::min<double>(limit[i], level * weights[i]);
    const std::int64_t due = std::min(std::llround(exact), static_cast<long long>(total)) - given;
    share[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(due, 0, limit[i]));
    given += share[i];
  }
  // What the rounding of floating-point sums left over, if anything.
  for (std::size_t i = 0; i < limit.size() && given < total; ++i) {
    const auto more =
        static_cast<std::int32_t>(std::min<std::int64_t>(total - given, limit[i] - share[i]));
    share[i] += more;
    given += more;
  }
  return share;
}

}  // namespace penstock::policy
