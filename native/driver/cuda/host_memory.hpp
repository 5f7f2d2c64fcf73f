// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory.  The driver makes it by pages of 4 KiB on one thread, some 3 GB a
// second.  Large pieces are the process's own memory instead, in huge pages where the kernel gives
// them, written to by all cores and registered with the driver, which is five times as quick
// (benchmarks/page_locking.py).  A piece that the host has no room for beside what runs is the
// driver's, which refuses where the kernel would end the process.  Thread rule: any thread.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.hpp"
#include "base/undo.hpp"
#include "base/units.hpp"
#include "driver/cuda/device.hpp"
#include "driver/cuda/host_room.hpp"
#include "driver/parallel.hpp"
#include "driver/text.hpp"

namespace penstock::driver::cuda {

class HostMemory {
 public:
  explicit HostMemory(const CudaDevice& device) : device_(device), symbols_(device.symbols()) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  Result<void*> allocate(Bytes size) {
    if (size == 0) return invalid("host_alloc: size 0");
    if (size >= kLarge && device_.registers_host_memory()) {
      if (const Piece piece = registered(size); piece.start != nullptr) return add(piece);
    }
    void* pointer = nullptr;
    PENSTOCK_TRY(device_.call(symbols_.cuMemHostAlloc, {size, Place::kHost}, &pointer, size,
                              kHostAllocPortable));
    return add({pointer, 0});
  }
  Status free(void* pointer) {
    Piece piece;
    {
      const std::lock_guard lock(mutex_);
      const auto found = pieces_.find(pointer);
      if (found == pieces_.end()) {
        return invalid("host_free: this driver has made nothing at ", pointer);
      }
      piece = {pointer, found->second};
      pieces_.erase(found);
    }
    return let_go(piece);
  }
  void give_everything_back() {
    std::map<void*, Bytes> pieces;
    {
      const std::lock_guard lock(mutex_);
      pieces.swap(pieces_);
    }
    for (const auto& [start, mapped] : pieces) (void)let_go({start, mapped});
  }
  std::int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(pieces_.size());
  }

 private:
  static constexpr Bytes kHugePage = 2 * kMiB;
  static constexpr Bytes kLarge = 2 * kHugePage;
  static constexpr Bytes kWritten = 16 * kMiB;  // by one thread at a time
  static constexpr Bytes kSpare = 512 * kMiB;   // of the host's, for the program itself

  struct Piece {
    void* start = nullptr;
    Bytes mapped = 0;  // 0: the driver's own
  };

  void* add(const Piece& piece) {
    Undo back([&] { (void)let_go(piece); });
    const std::lock_guard lock(mutex_);
    pieces_.emplace(piece.start, piece.mapped);
    back.keep();
    return piece.start;
  }
  Status let_go(const Piece& piece) {
    if (piece.mapped == 0) return device_.call(symbols_.cuMemFreeHost, {}, piece.start);
    PENSTOCK_TRY(device_.call(symbols_.cuMemHostUnregister, {}, piece.start));
    munmap(piece.start, piece.mapped);
    return {};
  }

  // Nothing where the host has no room for it, or the driver does not take it.
  Piece registered(Bytes size) {
    if (size > kMostBytes || HostRoom().left() < size + kSpare) return {};
    const Bytes mapped = align_up(size, static_cast<Bytes>(sysconf(_SC_PAGESIZE)));
    std::byte* const start = map(mapped);
    if (start == nullptr) return {};
    Undo unmap([&] { munmap(start, mapped); });
    madvise(start, mapped, MADV_HUGEPAGE);
    near_device(start, mapped);
    // A child would get a copy of its own, page by page, while it is made.
    if (madvise(start, mapped, MADV_DONTFORK) != 0 || !populate(start, mapped)) return {};
    if (!device_.call(symbols_.cuMemHostRegister, {}, start, mapped, kHostRegisterPortable).ok()) {
      return {};
    }
    unmap.keep();
    return {start, mapped};
  }
  // Aligned to huge pages.
  static std::byte* map(Bytes size) {
    void* const got =
        mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(got);
    const Bytes before =
        align_up(reinterpret_cast<Bytes>(got), kHugePage) - reinterpret_cast<Bytes>(got);
    if (before > 0) munmap(begin, before);
    munmap(begin + before + size, kHugePage - before);
    return begin + before;
  }
  // Whichever threads write to it first; a wish, where there is only one node or none.
  void near_device(void* start, Bytes size) const {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED
    const int node = device_.host_numa();
    unsigned long nodes = 0;
    constexpr int kMost = 8 * sizeof(nodes);
    if (node < 0 || node >= kMost) return;
    nodes = 1UL << node;
    syscall(SYS_mbind, start, size, kPreferred, &nodes, kMost + 1, 0);
  }
  static bool populate(std::byte* start, Bytes size) {
    std::atomic<bool> good{true};
    const auto count = static_cast<std::size_t>((size + kWritten - 1) / kWritten);
    in_parallel(count, [&](std::size_t nth) {
      std::byte* const part = start + static_cast<Bytes>(nth) * kWritten;
      if (!written(part, std::min(kWritten, size - static_cast<Bytes>(nth) * kWritten))) {
        good = false;
      }
    });
    return good;
  }
  static bool written(std::byte* part, Bytes size) {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
    if (madvise(part, size, kPopulateWrite) == 0) return true;
    if (errno != EINVAL) return false;
    const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
    for (Bytes at = 0; at < size; at += page) {
      *static_cast<volatile std::byte*>(part + at) = std::byte{0};
    }
    return true;
  }

  static constexpr Bytes kMostBytes = Bytes{1} << 46;

  const CudaDevice& device_;
  const Symbols& symbols_;
  mutable std::mutex mutex_;
  std::map<void*, Bytes> pieces_;
};

}  // namespace penstock::driver::cuda
