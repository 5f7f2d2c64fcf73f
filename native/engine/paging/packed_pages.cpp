// SPDX-License-Identifier: Apache-2.0
// Ranges whose host memory is packed: of blocks that gain by it the codes lie there, and of the
// others, in the same order and at the same distances, what they are.  Every page knows its parts.
//
// A block is encoded page by page, so that pages come alone.  What is encoded is not written: a
// block that is to be, or is to be read on the host, is unpacked first, into memory of its own; its
// codes stay where they are until the range goes.
#include <algorithm>
#include <cstring>

#include "base/undo.hpp"
#include "driver/parallel.hpp"
#include "engine/paging/page_copies.hpp"
#include "engine/paging/page_table.hpp"

namespace penstock::engine {
namespace {

constexpr Bytes kApart = 512;  // what is not encoded keeps PyTorch's alignment

// A page's share of a block.
struct Piece {
  PageId page = kNoPage;
  Part part;
  const std::byte* from = nullptr;
  bool encode = false;
};

// A code that saves less than a fifth is not worth a kernel, nor larger staging buffers.
bool gains(const codec::Survey& survey) {
  return survey.shape.size() * 5 <= survey.shape.raw_bytes * 4;
}

Status read_part(const Part& part, std::byte* to) {
  if (part.encoded()) return codec::decode(part.code(), {to, part.bytes});
  std::memcpy(to, part.host, part.bytes);
  return {};
}

}  // namespace

Status PageTable::pack(std::int32_t index, std::span<Packing> blocks, PageCopies& copies) {
  Range& range = ranges_[nth(index)];
  const Bytes chunk = pool_.chunk_bytes();
  std::vector<Piece> pieces;
  std::vector<std::size_t> ends;  // of each block's
  for (const Packing& block : blocks) {
    for (Bytes at = block.address - range.address, left = block.bytes; left > 0;) {
      const Bytes bytes = std::min(left, chunk - at % chunk);
      Piece piece;
      piece.page = range.first_page + static_cast<PageId>(at / chunk);
      piece.part.offset = at % chunk;
      piece.part.bytes = bytes;
      piece.from = range.host + at;
      piece.encode = block.encode && bytes % 2 == 0;
      pieces.push_back(piece);
      at += bytes;
      left -= bytes;
    }
    ends.push_back(pieces.size());
  }
  std::vector<PageCopies::Coding> codings;
  for (const Piece& piece : pieces) {
    if (piece.encode) codings.push_back({{piece.from, piece.part.bytes}, {}, nullptr});
  }
  PENSTOCK_TRY(copies.survey(codings));
  // Codes first, one behind the other; then the rest.
  Bytes codes = 0;
  Bytes encoded = 0;
  std::size_t coding = 0;
  for (Piece& piece : pieces) {
    if (!piece.encode) continue;
    const codec::Survey& survey = codings[coding++].survey;
    piece.encode = gains(survey);
    if (!piece.encode) continue;
    piece.part.shape = survey.shape;
    codes += piece.part.travels();
    encoded += piece.part.bytes;
  }
  std::erase_if(codings, [](const auto& each) { return !gains(each.survey); });
  if (codes == 0) {
    for (Packing& block : blocks) block.host = range.host + (block.address - range.address);
    return {};
  }
  Bytes raw = align_up(codes, kApart);
  std::size_t first = 0;
  std::vector<Bytes> places;
  for (std::size_t b = 0; b < blocks.size(); first = ends[b++]) {
    for (std::size_t i = first; i < ends[b]; ++i) {
      places.push_back(raw);
      if (!pieces[i].encode) raw += pieces[i].part.bytes;
    }
    raw = align_up(raw, kApart);
  }
  PENSTOCK_ASSIGN(void* const made, driver_.host_alloc(raw));
  Undo free([&] { (void)driver_.host_free(made); });
  auto* const host = static_cast<std::byte*>(made);
  Bytes code = 0;
  coding = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].part.slab = made;
    pieces[i].part.host = host + (pieces[i].encode ? code : places[i]);
    if (!pieces[i].encode) continue;
    code += pieces[i].part.travels();
    codings[coding++].code = pieces[i].part.host;
  }
  PENSTOCK_TRY(copies.encode(codings));
  driver::in_parallel(pieces.size(), [&](std::size_t i) {
    const Piece& piece = pieces[i];
    if (!piece.encode) std::memcpy(piece.part.host, piece.from, piece.part.bytes);
  });
  std::vector<std::vector<Part>> parts(nth(divide_up(range.bytes, chunk)));
  for (const Piece& piece : pieces) parts[nth(piece.page - range.first_page)].push_back(piece.part);
  free.keep();
  (void)driver_.host_free(range.host);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Page& page = pages_[nth(range.first_page) + i];
    page.parts = std::move(parts[i]);
    page.host = nullptr;
  }
  range.host = host;
  host_bytes_ -= range.host_bytes;
  host_bytes_ += range.host_bytes = raw;
  encoded_bytes_ += encoded;
  code_bytes_ += codes;
  first = 0;
  for (std::size_t b = 0; b < blocks.size(); first = ends[b++]) {
    const auto of_block = std::span(pieces).subspan(first, ends[b] - first);
    const bool whole = std::ranges::none_of(of_block, &Piece::encode);
    blocks[b].host = whole ? of_block.front().part.host : nullptr;
  }
  return {};
}

Result<std::vector<std::pair<Addr, Part*>>> PageTable::parts_of(Addr address, Bytes bytes) {
  const Range* range = find(address, bytes);
  if (range == nullptr || range->kind != RangeKind::kPaged) {
    return invalid("no block of a packed range");
  }
  std::vector<std::pair<Addr, Part*>> found;
  const auto [first, last] = pages_of(*range, address, bytes);
  Bytes covered = 0;
  for (PageId id = first; id <= last; ++id) {
    for (Part& part : page(id).parts) {
      const Addr at = page(id).address + part.offset;
      if (at < address || at + part.bytes > address + bytes) continue;
      found.emplace_back(at, &part);
      covered += part.bytes;
    }
  }
  if (covered != bytes) return invalid("not a block of a packed range, or not all of one");
  return found;
}

Status PageTable::read(Addr address, Bytes bytes, std::byte* to) {
  PENSTOCK_ASSIGN(const auto parts, parts_of(address, bytes));
  return driver::try_in_parallel(parts.size(), [&](std::size_t i) {
    return read_part(*parts[i].second, to + (parts[i].first - address));
  });
}

Result<Bytes> PageTable::check_codes() const {
  std::vector<const Part*> parts;
  for (const Page& page : pages_) {
    for (const Part& part : page.parts) {
      if (part.encoded()) parts.push_back(&part);
    }
  }
  PENSTOCK_TRY(driver::try_in_parallel(parts.size(), [&](std::size_t i) {
    return codec::check(parts[i]->code(), parts[i]->bytes);
  }));
  return encoded_bytes_;
}

Result<std::byte*> PageTable::unpack(Addr address, Bytes bytes) {
  PENSTOCK_ASSIGN(const auto parts, parts_of(address, bytes));
  if (std::ranges::none_of(parts, [](const auto& each) { return each.second->encoded(); })) {
    return parts.front().second->host;
  }
  room_for(unpacked_, unpacked_.size() + 1);
  PENSTOCK_ASSIGN(void* const made, driver_.host_alloc(bytes));
  Undo free([&] { (void)driver_.host_free(made); });
  auto* const host = static_cast<std::byte*>(made);
  PENSTOCK_TRY(read(address, bytes, host));
  free.keep();
  unpacked_.push_back(made);
  host_bytes_ += bytes;
  for (const auto& [at, part] : parts) {
    if (part->encoded()) {
      encoded_bytes_ -= part->bytes;
      code_bytes_ -= part->travels();
    }
    part->host = host + (at - address);
    part->slab = made;
    part->shape = {};
  }
  return host;
}

}  // namespace penstock::engine
