// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/prefixes.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "policy/planning/sequence.hpp"

namespace penstock::policy {
namespace {

// A part's size is looked for in so many steps at most: a finer search gains nothing that the
// sharing-out of what is left does not.
constexpr Bytes kTrials = 2048;

// The parts that stream when none may be larger than `cap`.
std::vector<Bytes> capped(const std::vector<Bytes>& sizes, Bytes cap) {
  std::vector<Bytes> parts(sizes);
  for (Bytes& part : parts) part = std::min(part, cap);
  return parts;
}

Bytes sum(const std::vector<Bytes>& values) {
  return std::accumulate(values.begin(), values.end(), Bytes{0});
}

// The most that streamed parts take at any step, with those of the look-ahead.
Bytes transit(const Sequence& sequence, const std::vector<Bytes>& parts, std::int32_t look_ahead) {
  Bytes most = 0;
  const std::size_t steps = sequence.steps.size();
  std::vector<std::size_t> counted_at(parts.size(), steps);
  for (std::size_t step = 0; step < steps; ++step) {
    Bytes taken = 0;
    const auto count = [&](PageId group) {
      const auto index = nth(group);
      if (counted_at[index] == step || parts[index] == 0) return false;
      counted_at[index] = step;
      taken += parts[index];
      return true;
    };
    for (const PageId group : sequence.steps[step].pages) count(group);
    std::int32_t left = look_ahead;
    for (std::size_t ahead = 1; ahead < steps && left > 0; ++ahead) {
      for (const PageId group : sequence.steps[(step + ahead) % steps].pages) {
        if (left > 0 && count(group)) --left;
      }
    }
    most = std::max(most, taken);
  }
  return most;
}

class Search {
 public:
  Search(const Sequence& sequence, const PrefixOptions& options)
      : sequence_(sequence), options_(options), sizes_(sequence.page_bytes) {
    std::vector<bool> used(sizes_.size(), false);
    for (const Step& step : sequence.steps) {
      for (const PageId group : step.pages) used[nth(group)] = true;
    }
    everything_ = sum(sizes_) <= options.budget;
    for (std::size_t group = 0; group < sizes_.size() && !everything_; ++group) {
      if (!used[group]) sizes_[group] = 0;
    }
  }

  // The smallest cap that fits, or nothing.
  [[nodiscard]] std::optional<Prefixes> with(std::int32_t look_ahead) const {
    const Bytes total = sum(sizes_);
    const Bytes largest = *std::max_element(sizes_.begin(), sizes_.end());
    const Bytes stride = align_up(std::max(largest / kTrials, Bytes{1}), options_.granularity);
    for (Bytes cap = 0;; cap += stride) {
      const std::vector<Bytes> parts = capped(sizes_, cap);
      const Bytes need = total - sum(parts) + transit(sequence_, parts, look_ahead);
      if (need <= options_.budget) return finish(parts, cap, options_.budget - need, look_ahead);
      if (cap >= largest) return std::nullopt;
    }
  }

 private:
  // What is left of the budget goes to groups evenly spread over the others.
  [[nodiscard]] Prefixes finish(std::vector<Bytes> parts, Bytes cap, Bytes left,
                                std::int32_t look_ahead) const {
    std::vector<std::size_t> full;
    for (std::size_t group = 0; group < parts.size(); ++group) {
      if (cap > 0 && parts[group] == cap) full.push_back(group);
    }
    const Bytes grains = std::min<Bytes>(left / options_.granularity, full.size());
    for (Bytes i = 0; i < grains; ++i) {
      parts[full[i * full.size() / grains]] -= options_.granularity;
    }
    Prefixes result{sizes_, look_ahead, sum(parts)};
    for (std::size_t group = 0; group < parts.size(); ++group) result.kept[group] -= parts[group];
    return result;
  }

  const Sequence& sequence_;
  const PrefixOptions& options_;
  std::vector<Bytes> sizes_;
  bool everything_ = false;
};

Status check_options(const Sequence& sequence, const PrefixOptions& options) {
  PENSTOCK_TRY(validate(sequence));
  if (options.granularity == 0 || options.look_ahead < 0) {
    return invalid("prefixes need a granularity of at least 1 and a look-ahead of at least 0, not ",
                   options.look_ahead);
  }
  for (const Bytes size : sequence.page_bytes) {
    if (size % options.granularity != 0) {
      return invalid("a group of ", size, " bytes is no multiple of the granularity of ",
                     options.granularity);
    }
  }
  return {};
}

}  // namespace

Result<Prefixes> keep_prefixes(const Sequence& sequence, const PrefixOptions& options) {
  PENSTOCK_TRY(check_options(sequence, options));
  if (sequence.page_bytes.empty()) return Prefixes{};
  const Search search(sequence, options);
  for (std::int32_t ahead = options.look_ahead; ahead >= 0; --ahead) {
    if (auto found = search.with(ahead)) return std::move(*found);
  }
  return Status(Code::kOutOfMemory, "groups that are used together need ",
                transit(sequence, sequence.page_bytes, 0), " bytes and the budget is ",
                options.budget);
}

}  // namespace penstock::policy
