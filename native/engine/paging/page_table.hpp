// SPDX-License-Identifier: Apache-2.0
// Ranges and their pages: what exists, where it lies, and which host bytes back it.  A paged range
// is cut into pages of one chunk each; a pinned range is one chunk of its own size, mapped for
// good; a range on the host is page-locked memory alone, which the device reads over the link; the
// pages of a heap come to be as a program allocates, and get host memory when they first leave.
// Knows nothing of residency beyond the fields it stores for resident_set.  Not thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/interval_map.hpp"
#include "driver/driver.hpp"
#include "engine/paging/chunk_pool.hpp"
#include "engine/paging/host_slabs.hpp"
#include "engine/paging/mark.hpp"
#include "engine/paging/part.hpp"
#include "policy/residency/stillness.hpp"
#include "policy/types.hpp"

namespace penstock::engine {

using policy::PageId;
using policy::SlotId;
inline constexpr PageId kNoPage = -1;
inline constexpr SlotId kNoSlot = -1;

// Keep the latest tick of each timeline.
void add_mark(std::vector<Mark>& marks, Mark mark);

class PageCopies;
struct Move;

struct Page {
  Addr address = 0;
  std::byte* host = nullptr;
  Bytes bytes = 0;          // the last page of a range may be short
  std::vector<Part> parts;  // of a packed range, which has no `host`
  std::int32_t range = 0;
  SlotId slot = kNoSlot;    // where its data is, or is on its way to
  SlotId mapped = kNoSlot;  // whose chunk its address is mapped to; may outlive `slot`
  Move* move = nullptr;     // brings it there; without a slot, takes it away
  std::int32_t active = 0;  // uses begun and not ended
  bool dirty = false;       // the device copy is newer than the host's
  bool cold = false;        // not needed soon, as its user says, until it is used
  // Of a heap:
  bool backed = false;      // its memory has been asked for
  bool blank = false;       // nothing to bring in: never written, or nothing lives in it
  bool reached = false;     // unseen work of before its last block was freed may, for all we know
  bool died = false;        // its last block was freed while it was away
  std::vector<Mark> death;  // after which it need not come back as it was, then
  bool on_host = false;     // its address leads to its host memory
  driver::Chunk host_chunk{};                  // which is this one, where addresses may lead there
  PageId host_slab = kNoPage;                  // the slab that it is a piece of, where not
  driver::Fingerprint* fingerprint = nullptr;  // of what its host memory holds
  bool writing = false;                        // work that is under way may write it
  std::int32_t live = 0;                       // blocks that lie in it
  std::int32_t group = -1;                     // the group of work that touches it now
  std::uint64_t seen = 0;                      // the piece of work that was last found to touch it
  policy::residency::Stillness stillness;
  bool has_left = false;  // with this fingerprint
  Mark ready;             // its data has arrived
  Mark written;           // the host copy is whole
  std::vector<Mark> last_use;

  // What a copy of it moves.
  [[nodiscard]] Bytes travels() const { return parts.empty() ? bytes : engine::travels(parts); }
};

// A block of a range that is to be packed.
struct Packing {
  Addr address = 0;
  Bytes bytes = 0;
  bool encode = false;        // it holds bf16 values, and is neither written nor read in place
  std::byte* host = nullptr;  // where it lies afterwards, all of it as it is; null: encoded
};

enum class RangeKind { kPaged, kPinned, kOnHost, kHeap };

struct Range {
  Addr address = 0;
  Bytes bytes = 0;     // as asked for
  Bytes reserved = 0;  // a multiple of the chunk size
  std::byte* host = nullptr;
  Bytes host_bytes = 0;
  RangeKind kind = RangeKind::kPaged;
  driver::Chunk chunk{};  // of a pinned range
  bool backed = false;    // pinned: the chunk is mapped
  PageId first_page = kNoPage;
};

class PageTable {
 public:
  // host_chunks: the host memory of heaps' pages is made of chunks.
  PageTable(driver::Driver& driver, ChunkPool& pool, bool host_chunks)
      : driver_(driver),
        pool_(pool),
        host_chunks_(host_chunks),
        slabs_(driver, pool.chunk_bytes()) {}
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // The index of the new range.  On failure nothing is left behind.
  Result<std::int32_t> create(Bytes bytes, RangeKind kind);
  // The range created last goes again; none of its pages has been resident.
  void undo_create();

  // ---- Pages whose host memory is encoded (packed_pages.cpp) ----
  // Encode the host memory of a paged range, which is blocks in order of their addresses, where
  // that gains, and pack it; what it took is given back.  None of its pages has been resident.  On
  // failure nothing has changed.  `copies` are staged.
  Status pack(std::int32_t range, std::span<Packing> blocks, PageCopies& copies);
  // Of a block that was packed, what the host holds.
  Status read(Addr address, Bytes bytes, std::byte* to);
  // It lies as it is from here on, in one piece; where.
  Result<std::byte*> unpack(Addr address, Bytes bytes);
  // Whether all codes are what they were, by their digests; of how many bytes.
  [[nodiscard]] Result<Bytes> check_codes() const;
  // The bytes that are encoded, and what their codes take.
  [[nodiscard]] Bytes encoded_bytes() const { return encoded_bytes_; }
  [[nodiscard]] Bytes code_bytes() const { return code_bytes_; }
  // Device memory that is no page's.
  void hold(Bytes bytes) { pinned_bytes_ += bytes; }

  // Whether a page with a fingerprint that is about to leave need only be copied if it has changed.
  bool likely_still(Page& page);
  // Host memory for a page of a heap that has none yet.
  Status give_host(Page& page);
  void take_host(Page& page);
  // Whether the next page's host memory goes on where this one's ends, page-locked by one call.
  [[nodiscard]] bool continues(PageId id) const {
    const Page& next = page(id + 1);
    if (next.range != page(id).range || next.host_slab != page(id).host_slab) return false;
    return page(id).fingerprint == nullptr || page(id).host_slab != kNoPage;
  }
  // Of heaps: what was copied when it left, changed or expected to be.
  [[nodiscard]] Bytes sent_bytes() const;

  [[nodiscard]] Page& page(PageId id) { return pages_[nth(id)]; }
  [[nodiscard]] const Page& page(PageId id) const { return pages_[nth(id)]; }
  [[nodiscard]] PageId pages() const { return static_cast<PageId>(pages_.size()); }
  [[nodiscard]] const Range& range(std::int32_t index) const { return ranges_[nth(index)]; }
  [[nodiscard]] std::int32_t index_of(const Range& range) const {
    return static_cast<std::int32_t>(&range - ranges_.data());
  }
  // The range that holds [address, address + bytes), or null.
  [[nodiscard]] const Range* find(Addr address, Bytes bytes) const;
  // The pages of that piece of a paged range: [first, last].
  [[nodiscard]] std::pair<PageId, PageId> pages_of(const Range& range, Addr address,
                                                   Bytes bytes) const;
  [[nodiscard]] Bytes pinned_bytes() const { return pinned_bytes_; }
  [[nodiscard]] Bytes paged_bytes() const { return paged_bytes_; }
  [[nodiscard]] Bytes host_bytes() const { return host_bytes_ + slabs_.bytes(); }

 private:
  Status give_fingerprint(Page& page);
  Status give_chunk(Page& page);
  Status give_piece(Page& page);
  // Those of a block, each with its page's address.
  Result<std::vector<std::pair<Addr, Part*>>> parts_of(Addr address, Bytes bytes);
  Status acquire(Range& range);
  Status back_pinned(Range& range);
  void release(const Range& range);

  driver::Driver& driver_;
  ChunkPool& pool_;
  const bool host_chunks_;
  HostSlabs slabs_;
  std::vector<Range> ranges_;
  std::vector<Page> pages_;
  IntervalMap<std::int32_t> by_address_;
  Bytes pinned_bytes_ = 0;
  Bytes paged_bytes_ = 0;
  Bytes host_bytes_ = 0;
  Bytes encoded_bytes_ = 0;
  Bytes code_bytes_ = 0;
  std::vector<void*> unpacked_;      // page-locked
  std::vector<void*> fingerprints_;  // page-locked, kFingerprints each
  std::vector<driver::Fingerprint*> spare_fingerprints_;
  Bytes sent_bytes_ = 0;  // less what fingerprints count
};

}  // namespace penstock::engine
