// SPDX-License-Identifier: Apache-2.0
// Sharing out a whole number evenly under limits: how many pages each step streams.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock::policy {

// Shares that add up to min(total, sum of limits), share[i] <= limit[i], as nearly proportional to
// weight[i] as the limits allow (water-filling), and such that every partial sum is within one of
// the exact one, so that rounding does not bunch the shares either.  O(n log n).
std::vector<std::int32_t> share_out(const std::vector<std::int32_t>& limit,
                                    const std::vector<double>& weight, std::int64_t total);

}  // namespace penstock::policy
