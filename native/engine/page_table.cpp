// SPDX-License-Identifier: Apache-2.0
#include "engine/page_table.hpp"

#include <algorithm>
#include <string>

namespace penstock::engine {

void add_mark(std::vector<Mark>& marks, Mark mark) {
  if (mark.timeline == nullptr) return;
  for (Mark& known : marks) {
    if (known.timeline == mark.timeline) {
      known.tick = std::max(known.tick, mark.tick);
      return;
    }
  }
  marks.push_back(mark);
}

PageTable::~PageTable() {
  for (const Range& range : ranges_) {
    if (range.backed) {
      (void)driver_.unmap(range.address, range.reserved);
      (void)pool_.give_back(range.chunk, range.reserved);
    }
    (void)driver_.unreserve(range.address, range.reserved);
    (void)driver_.host_free(range.host);
  }
}

Status PageTable::back_pinned(Range& range) {
  PENSTOCK_ASSIGN(range.chunk, pool_.take(range.reserved));
  Status status = driver_.map(range.address, range.reserved, range.chunk);
  if (status.ok()) {
    status = driver_.set_access(range.address, range.reserved);
    if (!status.ok()) (void)driver_.unmap(range.address, range.reserved);
  }
  if (!status.ok()) {
    (void)pool_.give_back(range.chunk, range.reserved);
    return status;
  }
  range.backed = true;
  return {};
}

Result<std::int32_t> PageTable::create(Bytes bytes, bool pinned) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "a range of 0 bytes");
  Range range;
  range.bytes = bytes;
  range.pinned = pinned;
  range.reserved = align_up(bytes, pinned ? driver_.info().granularity : pool_.chunk_bytes());
  PENSTOCK_ASSIGN(range.address, driver_.reserve(range.reserved));
  auto host = driver_.host_alloc(bytes);
  if (!host.ok()) {
    (void)driver_.unreserve(range.address, range.reserved);
    return host.status();
  }
  range.host = static_cast<std::byte*>(host.value());
  if (pinned) {
    const Status status = back_pinned(range);
    if (!status.ok()) {
      (void)driver_.host_free(range.host);
      (void)driver_.unreserve(range.address, range.reserved);
      return status;
    }
  }
  const auto index = static_cast<std::int32_t>(ranges_.size());
  by_address_.insert(range.address, range.address + range.reserved, index);
  host_bytes_ += bytes;
  if (pinned) {
    pinned_bytes_ += range.reserved;
  } else {
    paged_bytes_ += bytes;
    range.first_page = pages();
    const Bytes chunk = pool_.chunk_bytes();
    for (Bytes offset = 0; offset < bytes; offset += chunk) {
      Page page;
      page.address = range.address + offset;
      page.host = range.host + offset;
      page.bytes = std::min(chunk, bytes - offset);
      page.range = index;
      pages_.push_back(std::move(page));
    }
  }
  ranges_.push_back(range);
  return index;
}

const Range* PageTable::find(Addr address, Bytes bytes) const {
  const std::int32_t* index = by_address_.find(address);
  if (index == nullptr) return nullptr;
  const Range& range = ranges_[static_cast<std::size_t>(*index)];
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
