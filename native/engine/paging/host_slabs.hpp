// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory for the pages of heaps, which ask for it one by one.  CUDA copies no
// further than what one call has page-locked, so neighbours get theirs by one: what comes in side
// by side is one copy then.  Not thread-safe.
#pragma once

#include <cstddef>
#include <map>

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
  ~HostSlabs();
  HostSlabs(const HostSlabs&) = delete;
  HostSlabs& operator=(const HostSlabs&) = delete;

  // For `page` of the pages [first, end), whose addresses follow each other.  Where a slab cannot
  // be had, memory for this page alone; kHostOutOfMemory where that cannot either.
  Result<Piece> give(policy::PageId page, policy::PageId first, policy::PageId end);
  // A page's piece of that slab is not needed any more.  The last one frees the slab.
  void take(policy::PageId slab);
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  struct Slab {
    std::byte* host = nullptr;
    policy::PageId pages = 0;
    policy::PageId held = 0;  // by pages
  };
  using Place = std::map<policy::PageId, Slab>::iterator;
  Place find(policy::PageId page);
  Result<Place> make(policy::PageId first, policy::PageId pages);

  driver::Driver& driver_;
  const Bytes page_bytes_;
  std::map<policy::PageId, Slab> slabs_;  // by their first pages
  Bytes bytes_ = 0;
};

}  // namespace penstock::engine
