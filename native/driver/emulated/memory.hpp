// SPDX-License-Identifier: Apache-2.0
// Ranges, chunks and mappings of the emulated GPU.  A range is a PROT_NONE reservation; a mapping
// shares a piece of a memfd into it, so that a chunk at two addresses is one memory, and whatever
// is not mapped, or has no access, is a SIGSEGV to touch.  No call here waits for work in flight.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/emulated/backing.hpp"
#include "driver/ledger.hpp"
#include "driver/text.hpp"

namespace penstock::driver {

class HostMemory {
 public:
  static Result<std::unique_ptr<HostMemory>> open(Bytes granularity) {
    PENSTOCK_ASSIGN(auto device, HostBacking::open("penstock-device"));
    PENSTOCK_ASSIGN(auto host, HostBacking::open("penstock-host"));
    return std::unique_ptr<HostMemory>(
        new HostMemory(granularity, std::move(device), std::move(host)));
  }

  // Gives addresses back but punches no hole: in a forked child the memory is the parent's too.
  ~HostMemory() {
    for (const auto& [address, size] : ledger_.ranges()) munmap(pointer(address), size);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Below the last one where that is free, as CUDA's ranges lie: neighbours by chance.
  Result<Addr> reserve(Bytes size) {
    return ledger_.reserve(size, [&]() -> Result<Addr> {
      const Addr below = latest_ > size ? latest_ - size : 0;
      if (below != 0 && take_addresses(below, size)) return latest_ = below;
      PENSTOCK_ASSIGN(latest_, reserve_anywhere(size));
      return latest_;
    });
  }

  Status unreserve(Addr address, Bytes size) {
    return ledger_.unreserve(address, size, [&] { munmap(pointer(address), size); });
  }

  // `make_room()` sees to the capacity.
  template <class MakeRoom>
  Result<Chunk> create_chunk(Bytes size, Place place, MakeRoom&& make_room) {
    return ledger_.create_chunk(size, place, [&]() -> Result<Bytes> {
      PENSTOCK_TRY(make_room());
      return backing(place).take(size);
    });
  }

  Status release_chunk(Chunk chunk) {
    return ledger_.release_chunk(chunk, [](const Ledger::ChunkEntry&) {});
  }

  // most: of mappings that the chunk may have then; 0 = no limit
  Status map(Addr address, Bytes size, Chunk chunk, std::int32_t most) {
    return ledger_.map(address, size, chunk, [&](const Ledger::ChunkEntry& entry) -> Status {
      if (most > 0 && entry.mappings >= most) {
        return {Code::kDriver, "map: the chunk is mapped at as many addresses as can be"};
      }
      const void* got = mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                             backing(entry.place).fd(), static_cast<off_t>(entry.token));
      return got == MAP_FAILED ? system_failure("map", address, size, errno) : Status{};
    });
  }

  Status unmap(Addr address, Bytes size) {
    return ledger_.unmap(address, size, [&](std::int64_t) {
      const void* got = take(pointer(address), size, MAP_FIXED);
      return got == MAP_FAILED ? system_failure("unmap", address, size, errno) : Status{};
    });
  }

  Status set_access(Addr address, Bytes size) {
    return ledger_.set_access(address, size, [&](std::int64_t) {
      if (mprotect(pointer(address), size, PROT_READ | PROT_WRITE) == 0) return Status{};
      return system_failure("set_access", address, size, errno);
    });
  }

  // By chunks that are held or still mapped.
  Bytes used(Place place) const {
    return place == Place::kDevice ? device_->used() : host_->used();
  }
  const Ledger& ledger() const { return ledger_; }

 private:
  static void* pointer(Addr address) { return reinterpret_cast<void*>(address); }
  static void* take(void* at, Bytes size, int flags) {
    return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  }
  // False where something is there.
  static bool take_addresses(Addr address, Bytes size) {
    void* const got = take(pointer(address), size, MAP_FIXED_NOREPLACE);
    if (got != MAP_FAILED && got != pointer(address)) munmap(got, size);  // a kernel before 4.17
    return got == pointer(address);
  }
  Result<Addr> reserve_anywhere(Bytes size) const {
    // mmap aligns to pages only: take a granularity more and give the two ends back.
    const Bytes padded = size + granularity_;
    void* const got = padded > size ? take(nullptr, padded, 0) : MAP_FAILED;
    if (got == MAP_FAILED) {
      return Status(Code::kOutOfMemory, "reserve: no ", size_text(size),
                    " of contiguous address space left");
    }
    const Addr start = reinterpret_cast<Addr>(got);
    const Addr address = align_up(start, granularity_);
    if (address > start) munmap(got, address - start);
    const Bytes tail = start + padded - (address + size);
    if (tail > 0) munmap(pointer(address + size), tail);
    return address;
  }
  // Of mmap and mprotect, which say ENOMEM where the process has too many mappings; say the remedy.
  static Status system_failure(const char* call, Addr address, Bytes size, int error) {
    const char* remedy =
        error == ENOMEM ? "; too many mappings? raise vm.max_map_count, or use larger chunks" : "";
    return Status(Code::kDriver, call, " of ", span_text(address, size), ": ", std::strerror(error),
                  remedy);
  }

  HostMemory(Bytes granularity, std::unique_ptr<HostBacking> device,
             std::unique_ptr<HostBacking> host)
      : granularity_(granularity),
        device_(std::move(device)),
        host_(std::move(host)),
        ledger_(granularity, [this](const Ledger::ChunkEntry& unused) {
          backing(unused.place).give_back(unused.token, unused.size);
        }) {}

  HostBacking& backing(Place place) { return place == Place::kDevice ? *device_ : *host_; }

  const Bytes granularity_;
  const std::unique_ptr<HostBacking> device_;
  const std::unique_ptr<HostBacking> host_;
  Ledger ledger_;
  Addr latest_ = 0;  // range that was reserved, under the caller's lock
};

}  // namespace penstock::driver
