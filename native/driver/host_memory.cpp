// SPDX-License-Identifier: Apache-2.0
#include "driver/host_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "driver/text.hpp"

namespace penstock::driver {
namespace {

void* pointer(Addr address) { return reinterpret_cast<void*>(address); }

// mmap and mprotect say ENOMEM where the process has too many mappings; say the remedy.
Status system_failure(const char* call, Addr address, Bytes size, int error) {
  const char* remedy =
      error == ENOMEM ? "; too many mappings? raise vm.max_map_count, or use larger chunks" : "";
  return {Code::kDriver,
          text(call, " of ", span_text(address, size), ": ", std::strerror(error), remedy)};
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::open(Bytes granularity) {
  PENSTOCK_ASSIGN(auto device, HostBacking::open("penstock-device"));
  PENSTOCK_ASSIGN(auto host, HostBacking::open("penstock-host"));
  return std::unique_ptr<HostMemory>(
      new HostMemory(granularity, std::move(device), std::move(host)));
}

// Gives addresses back but punches no hole: in a forked child the memory is the parent's too.
HostMemory::~HostMemory() {
  for (const auto& [address, size] : ranges_) munmap(pointer(address), size);
}

Status HostMemory::check_multiple(const char* call, Bytes size) const {
  if (size != 0 && size % granularity_ == 0) return {};
  return {Code::kInvalidArgument,
          text(call, ": size ", size, " is not a positive multiple of ", size_text(granularity_))};
}

// Aligned, not empty, and inside one reserved range.
Status HostMemory::check_span(const char* call, Addr address, Bytes size) const {
  PENSTOCK_TRY(check_multiple(call, size));
  if (address % granularity_ != 0) {
    return {Code::kInvalidArgument, text(call, ": address ", address_text(address),
                                         " is not aligned to ", size_text(granularity_))};
  }
  auto range = ranges_.upper_bound(address);
  if (range != ranges_.begin()) {
    --range;
    const Bytes offset = address - range->first;
    if (offset < range->second && size <= range->second - offset) return {};
  }
  return {Code::kInvalidArgument,
          text(call, ": ", span_text(address, size), " is not inside one reserved range")};
}

HostMemory::Mappings::const_iterator HostMemory::first_overlap(Addr address, Bytes size) const {
  auto mapping = mappings_.upper_bound(address);
  if (mapping != mappings_.begin()) {
    const auto before = std::prev(mapping);
    if (before->first + before->second.size > address) return before;
  }
  if (mapping != mappings_.end() && mapping->first < address + size) return mapping;
  return mappings_.end();
}

Result<HostMemory::Span> HostMemory::whole_mappings(const char* call, Addr address, Bytes size) {
  PENSTOCK_TRY(check_span(call, address, size));
  const auto begin = mappings_.find(address);
  Addr reached = address;
  auto end = begin;
  while (end != mappings_.end() && end->first == reached && reached < address + size) {
    reached += end->second.size;
    ++end;
  }
  if (reached == address + size) return Span{begin, end};
  return Status(
      Code::kInvalidArgument,
      text(call, ": ", span_text(address, size),
           " is not made of whole mappings; it matches only up to ", address_text(reached)));
}

Result<Addr> HostMemory::reserve(Bytes size) {
  PENSTOCK_TRY(check_multiple("reserve", size));
  // mmap aligns to pages only: take a granularity more and give the two ends back.
  const Bytes padded = size + granularity_;
  void* got = MAP_FAILED;
  if (padded > size) {
    got = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (got == MAP_FAILED) {
    return Status(Code::kOutOfMemory,
                  text("reserve: no ", size_text(size), " of contiguous address space left"));
  }
  const Addr start = reinterpret_cast<Addr>(got);
  const Addr address = align_up(start, granularity_);
  if (address > start) munmap(got, address - start);
  const Bytes tail = start + padded - (address + size);
  if (tail > 0) munmap(pointer(address + size), tail);
  ranges_.emplace(address, size);
  return address;
}

Status HostMemory::unreserve(Addr address, Bytes size) {
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second != size) {
    return {Code::kInvalidArgument,
            text("unreserve: ", span_text(address, size), " is not a whole reserved range")};
  }
  if (const auto mapping = first_overlap(address, size); mapping != mappings_.end()) {
    return {Code::kInvalidArgument,
            text("unreserve: ", span_text(address, size), " still holds a mapping of ",
                 span_text(mapping->first, mapping->second.size), "; unmap it first")};
  }
  munmap(pointer(address), size);
  ranges_.erase(range);
  return {};
}

Result<Chunk> HostMemory::create_chunk(Bytes size, Place place) {
  PENSTOCK_TRY(check_multiple("create_chunk", size));
  PENSTOCK_ASSIGN(const Bytes offset, backing(place).take(size));
  const std::uint64_t id = next_chunk_++;
  chunks_.emplace(id, ChunkState{.offset = offset, .size = size, .place = place});
  ++held_chunks_;
  return Chunk{id};
}

Status HostMemory::release_chunk(Chunk chunk) {
  const auto id = static_cast<std::uint64_t>(chunk);
  const auto found = chunks_.find(id);
  if (found == chunks_.end() || !found->second.held) {
    return {Code::kInvalidArgument, text("release_chunk: no chunk ", id, ", or released already")};
  }
  found->second.held = false;
  --held_chunks_;
  drop_if_unused(id);
  return {};
}

void HostMemory::drop_if_unused(std::uint64_t id) {
  const auto found = chunks_.find(id);
  const ChunkState& chunk = found->second;
  if (chunk.held || chunk.mappings > 0) return;
  backing(chunk.place).give_back(chunk.offset, chunk.size);
  chunks_.erase(found);
}

Status HostMemory::map(Addr address, Bytes size, Chunk chunk) {
  PENSTOCK_TRY(check_span("map", address, size));
  const auto id = static_cast<std::uint64_t>(chunk);
  const auto found = chunks_.find(id);
  if (found == chunks_.end() || !found->second.held) {
    return {Code::kInvalidArgument, text("map: no chunk ", id, ", or released already")};
  }
  ChunkState& state = found->second;
  if (state.size != size) {
    return {Code::kInvalidArgument, text("map: chunk ", id, " has ", size_text(state.size),
                                         ", not ", size_text(size), "; a chunk is mapped whole")};
  }
  if (const auto other = first_overlap(address, size); other != mappings_.end()) {
    return {Code::kInvalidArgument,
            text("map: ", span_text(address, size), " overlaps the mapping of ",
                 span_text(other->first, other->second.size))};
  }
  const void* got = mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                         backing(state.place).fd(), static_cast<off_t>(state.offset));
  if (got == MAP_FAILED) return system_failure("map", address, size, errno);
  ++state.mappings;
  mappings_.emplace(address, Mapping{size, id});
  return {};
}

Status HostMemory::unmap(Addr address, Bytes size) {
  PENSTOCK_ASSIGN(const Span span, whole_mappings("unmap", address, size));
  const void* got = mmap(pointer(address), size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (got == MAP_FAILED) return system_failure("unmap", address, size, errno);
  for (auto mapping = span.begin; mapping != span.end; ++mapping) {
    --chunks_.at(mapping->second.chunk).mappings;
    drop_if_unused(mapping->second.chunk);
  }
  mappings_.erase(span.begin, span.end);
  return {};
}

Status HostMemory::set_access(Addr address, Bytes size) {
  if (auto span = whole_mappings("set_access", address, size); !span.ok()) return span.status();
  if (mprotect(pointer(address), size, PROT_READ | PROT_WRITE) != 0) {
    return system_failure("set_access", address, size, errno);
  }
  return {};
}

Bytes HostMemory::used(Place place) const {
  return place == Place::kDevice ? device_->used() : host_->used();
}

void HostMemory::count_live(LiveCounts& counts) const {
  counts.ranges = static_cast<std::int64_t>(ranges_.size());
  counts.mappings = static_cast<std::int64_t>(mappings_.size());
  counts.chunks = held_chunks_;
}

}  // namespace penstock::driver
