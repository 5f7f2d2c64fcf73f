// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/recorder.hpp"

#include <algorithm>
#include <utility>

namespace penstock::engine {

std::vector<UseId> Recorder::order() const {
  std::vector<UseId> order;
  for (const std::int32_t event : events_) {
    if (event > 0) order.push_back(event - 1);
  }
  return order;
}

policy::Sequence Recorder::sequence(const std::vector<Use>& uses, const PageTable& table) const {
  std::vector<Bytes> page_bytes;
  page_bytes.reserve(static_cast<std::size_t>(table.pages()));
  for (PageId id = 0; id < table.pages(); ++id) page_bytes.push_back(table.page(id).bytes);
  return sequence(uses, std::move(page_bytes));
}

policy::Sequence Recorder::sequence(const std::vector<Use>& uses,
                                    std::vector<Bytes> page_bytes) const {
  policy::Sequence sequence;
  sequence.page_bytes = std::move(page_bytes);
  std::vector<UseId> active;
  for (const std::int32_t event : events_) {
    if (event < 0) {
      const auto found = std::find(active.rbegin(), active.rend(), -event - 1);
      if (found != active.rend()) active.erase(std::next(found).base());
      continue;
    }
    active.push_back(event - 1);
    policy::Step step;
    for (const UseId use : active) {
      const auto& pages = uses[static_cast<std::size_t>(use)].pages;
      const auto& written = uses[static_cast<std::size_t>(use)].written;
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

}  // namespace penstock::engine
