// SPDX-License-Identifier: Apache-2.0
// The pager and encoded host memory: checks, room for what codes land in, and the page table's
// part (packed_pages.cpp) while nothing moves.
#include <algorithm>
#include <utility>

#include "base/undo.hpp"
#include "engine/paging/pager.hpp"

namespace penstock::engine {

Status Pager::pack(std::span<Packing> blocks) {
  const std::lock_guard lock(mutex_);
  if (blocks.empty()) return {};
  if (options_.evicted == Evicted::kOnHost) {
    return {Code::kUnsupported, "compressed pages cannot be read where they lie"};
  }
  const Addr begin = blocks.front().address;
  const Addr end = blocks.back().address + blocks.back().bytes;
  const Range* range = end > begin ? table_.find(begin, end - begin) : nullptr;
  if (range == nullptr || range->kind != RangeKind::kPaged) {
    return invalid("blocks that are packed lie in one paged range");
  }
  Addr next = range->address;
  for (const Packing& block : blocks) {
    if (block.address < next || block.bytes == 0 || block.address % 16 != 0) {
      return invalid("blocks that are packed follow one another, in multiples of 16");
    }
    next = block.address + block.bytes;
  }
  residents_.settle_all();
  const auto [first, last] = table_.pages_of(*range, range->address, range->bytes);
  for (PageId id = first; id <= last; ++id) {
    const Page& page = table_.page(id);
    if (page.slot != kNoSlot || page.mapped != kNoSlot || page.dirty || !page.parts.empty()) {
      return invalid("a range is packed before it is used");
    }
  }
  return guarded([&]() -> Status {
    PENSTOCK_TRY(stage());
    return table_.pack(table_.index_of(*range), blocks, residents_.copies());
  });
}

// Room for what codes of one move land in, taken off that of pages.
Status Pager::stage() {
  if (residents_.copies().staged()) return {};
  // See gains() in packed_pages.cpp.  A page that is encoded lies in one as it is.
  const Bytes codes = std::max(options_.max_copy_bytes / 5 * 4, pool_.chunk_bytes());
  const Bytes staging = residents_.copies().staging_for(codes);
  if (table_.pinned_bytes() + staging + pool_.chunk_bytes() > pool_.budget()) {
    return Status(Code::kOutOfMemory, "a budget of ", size_text(pool_.budget()),
                  " does not hold the ", size_text(staging), " that compressed pages land in");
  }
  table_.hold(staging);
  Status status = fit_slots();
  if (status.ok()) status = residents_.stage(codes);
  if (!status.ok()) {
    table_.hold(-staging);
    (void)fit_slots();
  }
  return status;
}

Status Pager::read(Addr address, Bytes bytes, std::byte* to) {
  const std::lock_guard lock(mutex_);
  return guarded([&] { return table_.read(address, bytes, to); });
}

Result<std::byte*> Pager::unpack(Addr address, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  residents_.settle_all();  // moves know the parts as they are
  return guarded([&] { return table_.unpack(address, bytes); });
}

Result<Bytes> Pager::verify() {
  const std::lock_guard lock(mutex_);
  const auto damaged = [](Status status, const char* where) {
    if (status.code() != Code::kInvalidArgument) return status;
    return Status(Code::kDriver, where, " is not what was encoded: ", status.message());
  };
  return guarded([&]() -> Result<Bytes> {
    residents_.settle_all();
    const Result<Bytes> bytes = table_.check_codes();
    if (!bytes.ok()) return damaged(bytes.status(), "host memory");
    if (bytes.value() == 0) return bytes;
    PENSTOCK_ASSIGN(void* const made, driver_.host_alloc(pool_.chunk_bytes()));
    const Undo free([&] { (void)driver_.host_free(made); });
    const std::span copy(static_cast<std::byte*>(made), pool_.chunk_bytes());
    for (PageId id = 0; id < table_.pages(); ++id) {
      const Page& page = table_.page(id);
      if (page.slot == kNoSlot || std::ranges::none_of(page.parts, &Part::encoded)) continue;
      PENSTOCK_TRY(residents_.arrive(id));
      PENSTOCK_TRY(residents_.copy_page_out(id, copy.data()));
      for (const Part& part : page.parts) {
        if (!part.encoded()) continue;
        Status status = codec::verify(part.code(), copy.subspan(part.offset, part.bytes));
        if (!status.ok()) return damaged(std::move(status), "a page on the device");
      }
    }
    return bytes;
  });
}

}  // namespace penstock::engine
