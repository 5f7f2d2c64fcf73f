// SPDX-License-Identifier: Apache-2.0
#include "driver/host_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
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
  for (const auto& [address, size] : ledger_.ranges()) munmap(pointer(address), size);
}

Result<Addr> HostMemory::reserve(Bytes size) {
  PENSTOCK_TRY(ledger_.check_size("reserve", size));
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
  ledger_.add_range(address, size);
  return address;
}

Status HostMemory::unreserve(Addr address, Bytes size) {
  PENSTOCK_TRY(ledger_.check_range(address, size));
  munmap(pointer(address), size);
  ledger_.drop_range(address);
  return {};
}

Result<Chunk> HostMemory::create_chunk(Bytes size, Place place) {
  PENSTOCK_ASSIGN(const Bytes offset, backing(place).take(size));
  return ledger_.add_chunk(offset, size, place);
}

Status HostMemory::release_chunk(Chunk chunk) {
  if (auto entry = ledger_.check_chunk("release_chunk", chunk); !entry.ok()) return entry.status();
  give_back(ledger_.release(chunk));
  return {};
}

void HostMemory::give_back(const std::vector<Ledger::ChunkEntry>& chunks) {
  for (const auto& chunk : chunks) backing(chunk.place).give_back(chunk.token, chunk.size);
}

Status HostMemory::map(Addr address, Bytes size, Chunk chunk) {
  PENSTOCK_ASSIGN(const Ledger::ChunkEntry entry, ledger_.check_map(address, size, chunk));
  const void* got = mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                         backing(entry.place).fd(), static_cast<off_t>(entry.token));
  if (got == MAP_FAILED) return system_failure("map", address, size, errno);
  ledger_.add_mapping(address, size, chunk);
  return {};
}

Status HostMemory::unmap(Addr address, Bytes size) {
  PENSTOCK_TRY(ledger_.check_mapped("unmap", address, size));
  const void* got = mmap(pointer(address), size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (got == MAP_FAILED) return system_failure("unmap", address, size, errno);
  give_back(ledger_.drop_mappings(address, size));
  return {};
}

Status HostMemory::set_access(Addr address, Bytes size) {
  PENSTOCK_TRY(ledger_.check_mapped("set_access", address, size));
  if (mprotect(pointer(address), size, PROT_READ | PROT_WRITE) != 0) {
    return system_failure("set_access", address, size, errno);
  }
  return {};
}

Bytes HostMemory::used(Place place) const {
  return place == Place::kDevice ? device_->used() : host_->used();
}

}  // namespace penstock::driver
