// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/page_copies.hpp"

#include <algorithm>
#include <utility>

#include "base/undo.hpp"

namespace penstock::engine {

PageCopies::~PageCopies() { unstage(); }

void PageCopies::unstage() {
  if (decoded_) {
    const driver::Stream stream = decoded_->stream();
    (void)driver_.synchronize(stream);
    decoded_.reset();
    (void)driver_.destroy_stream(stream);
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.mapped) (void)driver_.unmap(buffer.address, size_);
    if (buffer.address != 0) (void)driver_.unreserve(buffer.address, size_);
    if (buffer.chunk) (void)pool_->give_back(*buffer.chunk, size_);
    buffer = {};
  }
}

Status PageCopies::fill(Buffer& buffer) {
  PENSTOCK_ASSIGN(buffer.chunk, pool_->take(size_));
  PENSTOCK_ASSIGN(buffer.address, driver_.reserve(size_));
  PENSTOCK_TRY(driver_.map_with_access(buffer.address, size_, *buffer.chunk));
  buffer.mapped = true;
  return {};
}

Status PageCopies::stage(ChunkPool& pool, Bytes encoded_bytes) {
  if (staged()) return {};
  pool_ = &pool;
  size_ = staging_for(encoded_bytes) / kBuffers;
  Undo undo([this] { unstage(); });
  for (Buffer& buffer : buffers_) PENSTOCK_TRY(fill(buffer));
  auto line = std::make_unique<Timeline>(driver_, driver::Stream{});
  PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
  line->go_on_in(stream);
  decoded_ = std::move(line);
  undo.keep();
  return {};
}

void PageCopies::synchronize() {
  if (decoded_) (void)driver_.synchronize(decoded_->stream());
}

// Neighbours that lie on the host as they do in the page are one copy, the padding between them
// included.
Status PageCopies::copy_raw(const In& page, driver::Stream stream) {
  if (page.parts.empty()) {
    return page.host == nullptr ? Status{}
                                : driver_.copy_in(page.to, page.host, page.bytes, stream);
  }
  for (std::size_t i = 0; i < page.parts.size();) {
    const Part& first = page.parts[i++];
    if (first.encoded()) continue;
    Bytes bytes = first.bytes;
    while (i < page.parts.size() && !page.parts[i].encoded() && page.parts[i].slab == first.slab &&
           page.parts[i].host - first.host ==
               static_cast<std::ptrdiff_t>(page.parts[i].offset - first.offset)) {
      bytes = page.parts[i].offset + page.parts[i].bytes - first.offset;
      ++i;
    }
    PENSTOCK_TRY(driver_.copy_in(page.to + first.offset, first.host, bytes, stream));
  }
  return {};
}

Status PageCopies::copy_codes(std::span<const In> pages, Addr staged, driver::Stream stream) {
  const std::byte* from = nullptr;
  const void* slab = nullptr;
  Bytes bytes = 0;
  const auto flush = [&] {
    Status status = bytes == 0 ? Status{} : driver_.copy_in(staged, from, bytes, stream);
    staged += std::exchange(bytes, 0);
    return status;
  };
  for (const In& page : pages) {
    for (const Part& part : page.parts) {
      if (!part.encoded()) continue;
      if (part.host != from + bytes || part.slab != slab) {
        PENSTOCK_TRY(flush());
        from = part.host;
        slab = part.slab;
      }
      bytes += part.travels();
    }
  }
  return flush();
}

Status PageCopies::decode(std::span<const In> pages, Addr staged) {
  for (const In& page : pages) {
    for (const Part& part : page.parts) {
      if (!part.encoded()) continue;
      PENSTOCK_TRY(driver_.decode(page.to + part.offset, staged, part.shape, decoded_->stream()));
      staged += part.travels();
    }
  }
  return {};
}

Result<Mark> PageCopies::in(std::span<const In> pages, Timeline& line) {
  Bytes encoded = 0;
  for (const In& page : pages) {
    for (const Part& part : page.parts) encoded += part.encoded() ? part.travels() : 0;
    PENSTOCK_TRY(copy_raw(page, line.stream()));
  }
  if (encoded > size_) return Status(Code::kInternal, "a move is larger than its staging buffer");
  Buffer& buffer = buffers_[next_];
  if (encoded > 0) {
    PENSTOCK_TRY(buffer.free.make_wait(line.stream()));
    PENSTOCK_TRY(copy_codes(pages, buffer.address, line.stream()));
  }
  PENSTOCK_ASSIGN(const Tick copied, line.record());
  if (encoded == 0) return Mark{&line, copied};
  PENSTOCK_TRY(line.make_wait(decoded_->stream(), copied));
  PENSTOCK_TRY(decode(pages, buffer.address));
  PENSTOCK_ASSIGN(const Tick decoded, decoded_->record());
  buffer.free = Mark{decoded_.get(), decoded};
  next_ = (next_ + 1) % kBuffers;
  return buffer.free;
}

Status PageCopies::out(std::byte* host, Addr from, Bytes bytes, std::span<const Part> parts,
                       driver::Stream stream) {
  if (parts.empty()) return driver_.copy_out(host, from, bytes, stream);
  for (const Part& part : parts) {
    if (part.encoded()) continue;
    PENSTOCK_TRY(driver_.copy_out(part.host, from + part.offset, part.bytes, stream));
  }
  return {};
}

}  // namespace penstock::engine
