// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/lru.hpp"

#include <cstddef>

namespace penstock::policy {
namespace {

class Lru {
 public:
  Lru(const Sequence& sequence, std::int32_t slots)
      : sequence_(sequence), free_(slots), latest_(sequence.page_bytes.size(), kAbsent) {}

  LruReplay iterate() {
    LruReplay replay;
    for (const Step& step : sequence_.steps) {
      std::size_t use = uses_.size();
      std::int32_t missing = 0;
      for (const PageId page : step.pages) {
        std::size_t& latest = latest_[nth(page)];
        const bool hit = latest != kAbsent;
        replay.hits.push_back(hit);
        if (!hit) {
          ++missing;
          replay.bytes_in += sequence_.page_bytes[nth(page)];
        }
        latest = use++;
      }
      for (; missing > 0; --missing) take();
      uses_.insert(uses_.end(), step.pages.begin(), step.pages.end());
    }
    return replay;
  }

 private:
  static constexpr std::size_t kAbsent = SIZE_MAX;

  // A slot: a free one, or that of the page whose latest use is the oldest.
  void take() {
    if (free_ > 0) {
      --free_;
      return;
    }
    while (latest_of(oldest_) != oldest_) ++oldest_;
    latest_of(oldest_++) = kAbsent;
  }
  std::size_t& latest_of(std::size_t use) { return latest_[nth(uses_[use])]; }

  const Sequence& sequence_;
  std::int32_t free_;
  std::vector<PageId> uses_;         // of the steps that are over
  std::vector<std::size_t> latest_;  // by page: its last use, those of the running step included
  std::size_t oldest_ = 0;           // no use before it is the latest of a page
};

}  // namespace

LruReplay replay_lru(const Sequence& sequence, std::int32_t slots) {
  Lru lru(sequence, slots);
  lru.iterate();
  return lru.iterate();
}

}  // namespace penstock::policy
