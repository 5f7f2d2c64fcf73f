// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/host_slabs.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::engine {

using policy::PageId;

namespace {

// A copy takes four pages at most, of 2 to 16 MiB each.  So much of the host is held for a page
// that is alone in leaving.
constexpr Bytes kSlabBytes = 64 * kMiB;

}  // namespace

HostSlabs::~HostSlabs() {
  for (const auto& [first, slab] : slabs_) (void)driver_.host_free(slab.host);
}

HostSlabs::Place HostSlabs::find(PageId page) {
  const auto after = slabs_.upper_bound(page);
  if (after == slabs_.begin()) return slabs_.end();
  const auto found = std::prev(after);
  return page < found->first + found->second.pages ? found : slabs_.end();
}

Result<HostSlabs::Place> HostSlabs::make(PageId first, PageId pages) {
  const Bytes bytes = static_cast<Bytes>(pages) * page_bytes_;
  PENSTOCK_ASSIGN(void* host, driver_.host_alloc(bytes));
  bytes_ += bytes;
  return slabs_.emplace(first, Slab{static_cast<std::byte*>(host), pages, 0}).first;
}

Result<HostSlabs::Piece> HostSlabs::give(PageId page, PageId first, PageId end) {
  Place slab = find(page);
  if (slab == slabs_.end()) {
    const auto most = static_cast<PageId>(std::max<Bytes>(kSlabBytes / page_bytes_, 1));
    const PageId begin = first + (page - first) / most * most;
    const PageId behind = std::min(begin + most, end);
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

void HostSlabs::take(PageId slab) {
  const auto found = slabs_.find(slab);
  if (--found->second.held > 0) return;
  (void)driver_.host_free(found->second.host);
  bytes_ -= static_cast<Bytes>(found->second.pages) * page_bytes_;
  slabs_.erase(found);
}

}  // namespace penstock::engine
