// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/page_table.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/undo.hpp"

namespace penstock::engine {

namespace {

constexpr std::size_t kFingerprints = 1024;  // taken at a time

}  // namespace

void add_mark(std::vector<Mark>& marks, Mark mark) {
  if (mark.timeline == nullptr) return;
  for (Mark& known : marks) {
    if (known.timeline == mark.timeline) {
      known.tick = std::max(known.tick, mark.tick);
      return;
    }
  }
  const Status kept = guarded([&] { return marks.push_back(mark), Status{}; });
  if (!kept.ok()) (void)mark.synchronize();  // what is over needs no mark
}

PageTable::~PageTable() {
  for (Page& page : pages_) {
    if (ranges_[nth(page.range)].kind == RangeKind::kHeap) take_host(page);
  }
  for (void* slab : fingerprints_) (void)driver_.host_free(slab);
  for (void* block : unpacked_) (void)driver_.host_free(block);
  for (const Range& range : ranges_) release(range);
}

void PageTable::release(const Range& range) {
  if (range.backed) {
    (void)driver_.unmap(range.address, range.reserved);
    (void)pool_.give_back(range.chunk, range.reserved);
  }
  if (range.reserved != 0) (void)driver_.unreserve(range.address, range.reserved);
  if (range.host != nullptr) (void)driver_.host_free(range.host);
}

Status PageTable::give_fingerprint(Page& page) {
  if (spare_fingerprints_.empty()) {
    constexpr Bytes kBytes = kFingerprints * sizeof(driver::Fingerprint);
    // Room for all of them, so that none needs memory to be given back.
    room_for(fingerprints_, fingerprints_.size() + 1);
    room_for(spare_fingerprints_, (fingerprints_.size() + 1) * kFingerprints);
    PENSTOCK_ASSIGN(void* slab, driver_.host_alloc(kBytes));
    fingerprints_.push_back(slab);
    for (std::size_t i = 0; i < kFingerprints; ++i) {
      spare_fingerprints_.push_back(new (static_cast<driver::Fingerprint*>(slab) + i)
                                        driver::Fingerprint);
    }
  }
  page.fingerprint = spare_fingerprints_.back();
  spare_fingerprints_.pop_back();
  page.has_left = false;
  page.fingerprint->valid = 0;
  page.fingerprint->changes = page.fingerprint->late = 0;
  return {};
}

// A chunk of the host's, at an address of its own besides those that it gets as the page's.
Status PageTable::give_chunk(Page& page) {
  PENSTOCK_ASSIGN(const Addr address, driver_.reserve(page.bytes));
  Undo unreserve([&] { (void)driver_.unreserve(address, page.bytes); });
  PENSTOCK_ASSIGN(page.host_chunk, driver_.create_chunk(page.bytes, driver::Place::kHost));
  Undo release([&] { (void)driver_.release_chunk(page.host_chunk); });
  PENSTOCK_TRY(driver_.map_with_access(address, page.bytes, page.host_chunk));
  release.keep();
  unreserve.keep();
  page.host = reinterpret_cast<std::byte*>(address);
  host_bytes_ += page.bytes;
  return {};
}

Status PageTable::give_piece(Page& page) {
  const Range& range = ranges_[nth(page.range)];
  const auto pages = static_cast<PageId>(divide_up(range.bytes, pool_.chunk_bytes()));
  const auto id = static_cast<PageId>(&page - pages_.data());
  PENSTOCK_ASSIGN(const HostSlabs::Piece piece,
                  slabs_.give(id, range.first_page, range.first_page + pages));
  page.host = piece.host;
  page.host_slab = piece.slab;
  return {};
}

Status PageTable::give_host(Page& page) {
  if (page.host != nullptr || !page.parts.empty()) return {};
  PENSTOCK_TRY(give_fingerprint(page));
  const Status status = guarded([&] { return host_chunks_ ? give_chunk(page) : give_piece(page); });
  if (!status.ok()) spare_fingerprints_.push_back(std::exchange(page.fingerprint, nullptr));
  return status;
}

bool PageTable::likely_still(Page& page) {
  // The device may still be at the copy before this one.
  const std::uint32_t changes = std::atomic_ref(page.fingerprint->changes).load();
  const bool still = page.stillness.likely(changes, std::exchange(page.has_left, true));
  if (!still) sent_bytes_ += page.bytes;
  return still;
}

void PageTable::take_host(Page& page) {
  if (page.host == nullptr) return;
  if (host_chunks_) {
    const Addr address = reinterpret_cast<Addr>(page.host);
    (void)driver_.unmap(address, page.bytes);
    (void)driver_.release_chunk(page.host_chunk);
    (void)driver_.unreserve(address, page.bytes);
    host_bytes_ -= page.bytes;
  } else {
    slabs_.take(std::exchange(page.host_slab, kNoPage));
  }
  page.host = nullptr;
  sent_bytes_ += page.fingerprint->late * page.bytes;
  spare_fingerprints_.push_back(std::exchange(page.fingerprint, nullptr));
}

Bytes PageTable::sent_bytes() const {
  Bytes bytes = sent_bytes_;
  for (const Page& page : pages_) {
    if (page.fingerprint == nullptr) continue;
    bytes += std::atomic_ref(page.fingerprint->late).load() * page.bytes;  // the device counts
  }
  return bytes;
}

Status PageTable::back_pinned(Range& range) {
  PENSTOCK_ASSIGN(range.chunk, pool_.take(range.reserved));
  Status status = driver_.map_with_access(range.address, range.reserved, range.chunk);
  range.backed = status.ok();
  if (!status.ok()) (void)pool_.give_back(range.chunk, range.reserved);
  return status;
}

// Addresses, host memory and, where it is pinned, device memory for `range`; all or nothing.
Status PageTable::acquire(Range& range) {
  if (range.kind == RangeKind::kOnHost) {
    PENSTOCK_ASSIGN(void* host, driver_.host_alloc(range.bytes));
    range.host = static_cast<std::byte*>(host);
    range.address = reinterpret_cast<Addr>(host);  // unified addressing: the device's, too
    return {};
  }
  const bool pinned = range.kind == RangeKind::kPinned;
  range.reserved = align_up(range.bytes, pinned ? driver_.info().granularity : pool_.chunk_bytes());
  PENSTOCK_ASSIGN(range.address, driver_.reserve(range.reserved));
  Undo undo([&] { release(range); });
  if (range.kind != RangeKind::kHeap) {
    PENSTOCK_ASSIGN(void* host, driver_.host_alloc(range.bytes));
    range.host = static_cast<std::byte*>(host);
  }
  if (pinned) PENSTOCK_TRY(back_pinned(range));
  undo.keep();
  return {};
}

Result<std::int32_t> PageTable::create(Bytes bytes, RangeKind kind) {
  if (bytes == 0) return invalid("a range of 0 bytes");
  Range range;
  range.bytes = bytes;
  range.kind = kind;
  // The driver first: books of what no machine has would be as large.
  PENSTOCK_TRY(acquire(range));
  const auto index = static_cast<std::int32_t>(ranges_.size());
  const Addr end = range.address + std::max(range.reserved, bytes);
  // Then all the room: a page whose range is not in the list would be one that nobody can give
  // back.
  Undo undo([&] { release(range); });
  room_for(ranges_, ranges_.size() + 1);
  const bool paged = kind == RangeKind::kPaged || kind == RangeKind::kHeap;
  if (paged) room_for(pages_, pages_.size() + divide_up(bytes, pool_.chunk_bytes()));
  by_address_.insert(range.address, end, index);
  undo.keep();
  if (kind != RangeKind::kHeap) host_bytes_ += range.host_bytes = bytes;
  if (kind == RangeKind::kPinned) pinned_bytes_ += range.reserved;
  if (kind == RangeKind::kPaged) paged_bytes_ += bytes;
  if (paged) {
    range.first_page = pages();
    const Bytes chunk = pool_.chunk_bytes();
    for (Bytes offset = 0; offset < bytes; offset += chunk) {
      Page page;
      page.address = range.address + offset;
      if (range.host != nullptr) page.host = range.host + offset;
      page.blank = kind == RangeKind::kHeap;
      page.bytes = std::min(chunk, bytes - offset);
      page.range = index;
      pages_.push_back(std::move(page));
    }
  }
  ranges_.push_back(range);
  return index;
}

void PageTable::undo_create() {
  const Range range = ranges_.back();
  ranges_.pop_back();
  if (range.first_page != kNoPage) pages_.resize(nth(range.first_page));
  by_address_.erase(range.address);
  host_bytes_ -= range.host_bytes;
  if (range.kind == RangeKind::kPinned) pinned_bytes_ -= range.reserved;
  if (range.kind == RangeKind::kPaged) paged_bytes_ -= range.bytes;
  release(range);
}

const Range* PageTable::find(Addr address, Bytes bytes) const {
  const std::int32_t* index = by_address_.find(address);
  if (index == nullptr) return nullptr;
  const Range& range = ranges_[nth(*index)];
  return bytes <= range.bytes && address - range.address <= range.bytes - bytes ? &range : nullptr;
}

std::pair<PageId, PageId> PageTable::pages_of(const Range& range, Addr address, Bytes bytes) const {
  const Bytes chunk = pool_.chunk_bytes();
  const Bytes begin = address - range.address;
  const Bytes end = begin + std::max<Bytes>(bytes, 1) - 1;
  return {range.first_page + static_cast<PageId>(begin / chunk),
          range.first_page + static_cast<PageId>(end / chunk)};
}

}  // namespace penstock::engine
