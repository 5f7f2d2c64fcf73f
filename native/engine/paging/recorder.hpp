// SPDX-License-Identifier: Apache-2.0
// Records the uses of one iteration and turns them into the policy's sequence.  A step is one
// begin; it needs the pages of that use and of every use begun before it and not yet ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "engine/paging/page_table.hpp"
#include "policy/learning/regulars.hpp"
#include "policy/types.hpp"

namespace penstock::engine {

using UseId = std::int32_t;

struct Use {
  std::vector<PageId> pages;    // sorted, distinct; pages of pinned ranges are not listed
  std::vector<PageId> written;  // of these, the ones that the use writes
};

class Recorder {
 public:
  // More uses than this in one iteration, and it is not an iteration: recording starts over.
  static constexpr std::size_t kMost = 1 << 20;

  void begin(UseId use) { note(use + 1); }
  void end(UseId use) { note(-use - 1); }
  void clear() { events_.clear(); }
  [[nodiscard]] bool empty() const { return events_.empty(); }

  // The uses in the order in which they began.
  [[nodiscard]] std::vector<UseId> order() const {
    std::vector<UseId> order;
    for (const std::int32_t event : events_) {
      if (event > 0) order.push_back(event - 1);
    }
    return order;
  }
  // Of the uses that are regular.
  [[nodiscard]] policy::Sequence sequence(const std::vector<Use>& uses, const PageTable& table,
                                          const policy::learning::Regulars& regulars) const {
    std::vector<Bytes> page_bytes;
    page_bytes.reserve(nth(table.pages()));
    for (PageId id = 0; id < table.pages(); ++id) page_bytes.push_back(table.page(id).travels());
    return sequence(uses, std::move(page_bytes), regulars);
  }
  [[nodiscard]] policy::Sequence sequence(const std::vector<Use>& uses,
                                          std::vector<Bytes> page_bytes,
                                          const policy::learning::Regulars& regulars = {}) const {
    policy::Sequence sequence;
    sequence.page_bytes = std::move(page_bytes);
    std::vector<UseId> active;
    for (const std::int32_t event : events_) {
      if (!regulars.has(std::abs(event) - 1)) continue;
      if (event < 0) {
        const auto found = std::find(active.rbegin(), active.rend(), -event - 1);
        if (found != active.rend()) active.erase(std::next(found).base());
        continue;
      }
      active.push_back(event - 1);
      policy::Step step;
      for (const UseId use : active) {
        const auto& pages = uses[nth(use)].pages;
        const auto& written = uses[nth(use)].written;
        step.pages.insert(step.pages.end(), pages.begin(), pages.end());
        step.written.insert(step.written.end(), written.begin(), written.end());
      }
      for (auto* list : {&step.pages, &step.written}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
      }
      sequence.steps.push_back(std::move(step));
    }
    return sequence;
  }

 private:
  void note(std::int32_t event) {
    if (events_.size() >= kMost) events_.clear();
    // A wrong plan costs time, a use that does not end more.
    if (!guarded([&] { return events_.push_back(event), Status{}; }).ok()) events_.clear();
  }
  std::vector<std::int32_t> events_;  // use + 1 begins, -(use + 1) ends
};

}  // namespace penstock::engine
