// SPDX-License-Identifier: Apache-2.0
#include "policy/streams.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "policy/occupancy.hpp"
#include "policy/quota.hpp"

namespace penstock::policy {

Streams::Streams(const Sequence& sequence, const UseIndex& index,
                 const std::vector<UseIndex::Id>& gaps, const std::vector<std::int32_t>& taken,
                 std::int32_t capacity)
    : sequence_(sequence),
      index_(index),
      capacity_(capacity),
      gaps_(static_cast<std::int64_t>(gaps.size())),
      others_(taken),
      single_(taken.size()) {
  std::vector<std::int32_t> change(taken.size() + 1, 0);
  for (const UseIndex::Id gap : gaps) {
    const StepId first = index.step(index.next(gap));
    const StepId length = index.steps() - index.gap_length(gap);
    if (length == 1) {
      single_[static_cast<std::size_t>(first)].push_back(gap);
      --others_[static_cast<std::size_t>(first)];
    } else {
      long_.push_back({gap, first, length});
      const StepId end = first + length;
      --change[static_cast<std::size_t>(first)];
      ++change[static_cast<std::size_t>(std::min(end, index.steps()))];
      if (end > index.steps()) {
        --change[0];
        ++change[static_cast<std::size_t>(end - index.steps())];
      }
    }
  }
  std::int32_t covered = 0;
  for (std::size_t step = 0; step < others_.size(); ++step)
    others_[step] += covered += change[step];
  std::stable_sort(long_.begin(), long_.end(), [](const Arc& a, const Arc& b) {
    return std::pair(a.length, a.first) < std::pair(b.length, b.first);
  });
}

std::int64_t Streams::wanted(std::int32_t level) const {
  return std::max<std::int64_t>(0, gaps_ - capacity_ + level);
}

std::vector<std::int32_t> Streams::single_limits(std::int32_t level) const {
  std::vector<std::int32_t> limits(single_.size());
  for (std::size_t step = 0; step < limits.size(); ++step) {
    limits[step] = std::min(static_cast<std::int32_t>(single_[step].size()), level - others_[step]);
  }
  return limits;
}

// Up to `count` arcs that fit beside the single ones; spread over the cycle when asked to.
std::vector<UseIndex::Id> Streams::choose_long(std::int32_t level, std::int64_t count,
                                               bool spread) const {
  std::vector<std::int32_t> excess = single_limits(level);
  for (std::size_t step = 0; step < excess.size(); ++step) excess[step] -= level - others_[step];
  Occupancy room(excess);  // below 0 where there is room
  std::vector<UseIndex::Id> chosen;
  std::vector<bool> tried(long_.size(), false);
  const auto arcs = static_cast<std::int64_t>(long_.size());
  for (const bool all : {false, true}) {
    if (!all && !spread) continue;
    for (std::int64_t i = 0; i < arcs && std::ssize(chosen) < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (tried[at] || (!all && (i + 1) * count / arcs == i * count / arcs)) continue;
      tried[at] = true;
      if (room.max(long_[at].first, long_[at].length) >= 0) continue;
      room.add(long_[at].first, long_[at].length, 1);
      chosen.push_back(long_[at].gap);
    }
  }
  return chosen;
}

bool Streams::possible(std::int32_t level) const {
  const std::vector<std::int32_t> limits = single_limits(level);
  const std::int64_t short_of =
      wanted(level) - std::accumulate(limits.begin(), limits.end(), std::int64_t{0});
  return short_of <= 0 || (short_of <= std::ssize(long_) &&
                           std::ssize(choose_long(level, short_of, false)) >= short_of);
}

std::int32_t Streams::least_level() const {
  std::int32_t low = *std::max_element(others_.begin(), others_.end());
  std::int32_t high = std::max(low, capacity_);
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (possible(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Streams::choose_run(std::size_t step, std::size_t count,
                         std::vector<UseIndex::Id>& chosen) const {
  const std::vector<UseIndex::Id>& gaps = single_[step];
  const auto page = [&](std::size_t i) { return index_.page(gaps[i]); };
  const auto bytes = [&](std::size_t i) {
    return static_cast<std::int64_t>(sequence_.page_bytes[static_cast<std::size_t>(page(i))]);
  };
  const auto broken = [&](std::size_t i) { return page(i) != page(i - 1) + 1 ? 1 : 0; };
  std::int64_t breaks = 0;
  std::int64_t moved = 0;
  std::size_t best = 0;
  std::pair<std::int64_t, std::int64_t> best_cost{INT64_MAX, 0};
  for (std::size_t end = 0; end < gaps.size(); ++end) {
    moved += bytes(end);
    if (end > 0) breaks += broken(end);
    if (end >= count) {
      moved -= bytes(end - count);
      breaks -= broken(end - count + 1);
    }
    if (end + 1 >= count && std::pair(breaks, moved) < best_cost) {
      best_cost = {breaks, moved};
      best = end + 1 - count;
    }
  }
  for (std::size_t i = best; i < best + count; ++i) chosen.push_back(gaps[i]);
}

std::vector<UseIndex::Id> Streams::choose(const std::vector<double>& weight) const {
  if (gaps_ == 0) return {};
  const std::int32_t level = least_level();
  const std::vector<std::int32_t> limits = single_limits(level);
  const std::int64_t total = wanted(level);
  const std::vector<std::int32_t> share = share_out(limits, weight, total);
  std::vector<UseIndex::Id> chosen;
  for (std::size_t step = 0; step < share.size(); ++step) {
    if (share[step] > 0) choose_run(step, static_cast<std::size_t>(share[step]), chosen);
  }
  if (const std::int64_t more = total - std::ssize(chosen); more > 0) {
    std::vector<UseIndex::Id> arcs = choose_long(level, more, true);
    if (std::ssize(arcs) < more) arcs = choose_long(level, more, false);
    chosen.insert(chosen.end(), arcs.begin(), arcs.end());
  }
  return chosen;
}

}  // namespace penstock::policy
