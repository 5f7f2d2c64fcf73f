// SPDX-License-Identifier: Apache-2.0
// Records the uses of one iteration and turns them into the policy's sequence.  A step is one
// begin; it needs the pages of that use and of every use begun before it and not yet ended.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/paging/page_table.hpp"
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
  [[nodiscard]] std::vector<UseId> order() const;
  [[nodiscard]] policy::Sequence sequence(const std::vector<Use>& uses,
                                          const PageTable& table) const;
  [[nodiscard]] policy::Sequence sequence(const std::vector<Use>& uses,
                                          std::vector<Bytes> page_bytes) const;

 private:
  void note(std::int32_t event) {
    if (events_.size() >= kMost) events_.clear();
    events_.push_back(event);
  }
  std::vector<std::int32_t> events_;  // use + 1 begins, -(use + 1) ends
};

}  // namespace penstock::engine
