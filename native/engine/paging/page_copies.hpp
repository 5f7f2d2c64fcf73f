// SPDX-License-Identifier: Apache-2.0
// Copies of pages between host and device, whatever form the host keeps them in.  Codes land in a
// staging buffer, several by one copy where they lie side by side, and a kernel in a stream of its
// own writes what they stand for to its place: the link goes on with the other buffer meanwhile.
// Of parts that are encoded nothing goes out: what is encoded has not been written.
// Thread rule: calls one at a time.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/paging/chunk_pool.hpp"
#include "engine/paging/mark.hpp"
#include "engine/paging/part.hpp"

namespace penstock::engine {

class PageCopies {
 public:
  struct In {
    Addr to = 0;
    const std::byte* host = nullptr;  // of all of it, where there are no parts
    Bytes bytes = 0;
    std::span<const Part> parts;
  };

  explicit PageCopies(driver::Driver& driver) : driver_(driver) {}
  ~PageCopies();
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;

  // Buffers for moves of so many encoded bytes at the most, from the pool; none where there are
  // some already.  Their sizes together: staging_for().  All or nothing.
  Status stage(ChunkPool& pool, Bytes encoded_bytes);
  [[nodiscard]] bool staged() const { return decoded_ != nullptr; }
  [[nodiscard]] Bytes staging_for(Bytes encoded_bytes) const {
    return kBuffers * align_up(encoded_bytes, driver_.info().granularity);
  }

  // A piece of a page that may be encoded; all of it lies in page-locked memory.
  struct Coding {
    std::span<const std::byte> raw;
    codec::Survey survey;
    std::byte* code = nullptr;
  };
  // Through the buffers, which hold a page each (page_encoding.cpp); all is done afterwards.
  Status survey(std::span<Coding> pieces);
  // Every code is decoded and compared where it arrives.
  Status encode(std::span<const Coding> pieces);

  // Given to the stream of `line`.  The mark after which all is there.  On failure some of it may
  // be on its way: synchronize() before its place is used for anything else.
  Result<Mark> in(std::span<const In> pages, Timeline& line);
  Status out(std::byte* host, Addr from, Bytes bytes, std::span<const Part> parts,
             driver::Stream stream);
  void synchronize();  // all that was decoded, beside the caller's own streams

 private:
  static constexpr std::size_t kBuffers = 2;
  struct Buffer {
    std::optional<driver::Chunk> chunk;
    Addr address = 0;
    bool mapped = false;
    Mark free;
  };
  void unstage();
  Status fill(Buffer& buffer);
  Status wait_for_buffers(driver::Stream stream);
  Status copy_raw(const In& page, driver::Stream stream);
  Status decode(std::span<const In> pages, Addr staged);
  Status copy_codes(std::span<const In> pages, Addr staged, driver::Stream stream);

  driver::Driver& driver_;
  ChunkPool* pool_ = nullptr;
  Bytes size_ = 0;  // of a buffer
  std::array<Buffer, kBuffers> buffers_;
  std::size_t next_ = 0;
  std::unique_ptr<Timeline> decoded_;
};

}  // namespace penstock::engine
