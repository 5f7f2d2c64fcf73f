// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory for the pages of heaps, which ask for it one by one.  CUDA copies no
// further than what one call has page-locked, so neighbours get theirs by one: what comes in side
// by side is one copy then.  Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "base/undo.hpp"
#include "driver/driver.hpp"
#include "policy/types.hpp"

namespace penstock::engine {

class HostSlabs {
 public:
  struct Piece {
    std::byte* host = nullptr;
    policy::PageId slab = -1;  // the same for pages whose pieces lie as their numbers do
  };

  HostSlabs(driver::Driver& driver, Bytes page_bytes) : driver_(driver), page_bytes_(page_bytes) {}
  ~HostSlabs() {
    for (const auto& [first, slab] : slabs_) (void)driver_.host_free(slab.host);
  }
  HostSlabs(const HostSlabs&) = delete;
  HostSlabs& operator=(const HostSlabs&) = delete;

  // For `page` of the pages [first, end), whose addresses follow each other.  Where a slab cannot
  // be had, memory for this page alone; kHostOutOfMemory where that cannot either.
  Result<Piece> give(policy::PageId page, policy::PageId first, policy::PageId end) {
    Place slab = find(page);
    if (slab == slabs_.end()) {
      const auto most = static_cast<policy::PageId>(std::max<Bytes>(kSlabBytes / page_bytes_, 1));
      const policy::PageId begin = first + (page - first) / most * most;
      const policy::PageId behind = std::min(begin + most, end);
      // One that was made for a page alone may be in the way.
      const auto next = slabs_.lower_bound(begin);
      const bool in_the_way = next != slabs_.end() && next->first < behind;
      Result<Place> made = in_the_way ? make(page, 1) : make(begin, behind - begin);
      if (!made.ok() && !in_the_way) made = make(page, 1);
      PENSTOCK_ASSIGN(slab, std::move(made));
    }
    ++slab->second.held;
    const auto offset = static_cast<Bytes>(page - slab->first) * page_bytes_;
    return Piece{slab->second.host + offset, slab->first};
  }
  // A page's piece of that slab is not needed any more.  The last one frees the slab.
  void take(policy::PageId slab) {
    const auto found = slabs_.find(slab);
    if (--found->second.held > 0) return;
    (void)driver_.host_free(found->second.host);
    bytes_ -= static_cast<Bytes>(found->second.pages) * page_bytes_;
    slabs_.erase(found);
  }
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  // A copy takes four pages at most, of 2 to 16 MiB each.  So much of the host is held for a page
  // that is alone in leaving.
  static constexpr Bytes kSlabBytes = 64 * kMiB;

  struct Slab {
    std::byte* host = nullptr;
    policy::PageId pages = 0;
    policy::PageId held = 0;  // by pages
  };
  using Place = std::map<policy::PageId, Slab>::iterator;
  Place find(policy::PageId page) {
    const auto after = slabs_.upper_bound(page);
    if (after == slabs_.begin()) return slabs_.end();
    const auto found = std::prev(after);
    return page < found->first + found->second.pages ? found : slabs_.end();
  }
  Result<Place> make(policy::PageId first, policy::PageId pages) {
    const Bytes bytes = static_cast<Bytes>(pages) * page_bytes_;
    const Place made = slabs_.emplace(first, Slab{nullptr, pages, 0}).first;
    Undo erase([&] { slabs_.erase(made); });
    PENSTOCK_ASSIGN(void* const host, driver_.host_alloc(bytes));
    erase.keep();
    bytes_ += bytes;
    made->second.host = static_cast<std::byte*>(host);
    return made;
  }

  driver::Driver& driver_;
  const Bytes page_bytes_;
  std::map<policy::PageId, Slab> slabs_;  // by their first pages
  Bytes bytes_ = 0;
};

}  // namespace penstock::engine
