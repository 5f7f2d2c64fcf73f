// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory of the emulated GPU: exactly the size asked for, page-aligned, with a
// page behind it that nobody may touch, and given back to the system when freed.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "base/status.hpp"
#include "base/units.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace penstock::driver {

class HostPageLocked {
 public:
  HostPageLocked() = default;
  ~HostPageLocked() {
    for (const auto& [pointer, size] : allocations_) give_back(pointer, size);
  }
  HostPageLocked(const HostPageLocked&) = delete;
  HostPageLocked& operator=(const HostPageLocked&) = delete;

  // the caller has checked capacity
  Result<void*> allocate(Bytes size) {
    if (size == 0) return invalid("host_alloc: size 0");
    const Bytes body = align_up(size, page_size());
    void* got = MAP_FAILED;
    errno = ENOMEM;
    if (body >= size) {
      got = mmap(nullptr, body + page_size(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (got == MAP_FAILED) {
      return Status(Code::kHostOutOfMemory, "host_alloc of ", size_text(size), " beside the ",
                    size_text(used_), " held: ", std::strerror(errno));
    }
    mprotect(static_cast<char*>(got) + body, page_size(), PROT_NONE);
    // The rest of the last page belongs to nobody either; the address sanitizer can say so.
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(got) + size, body - size);
    allocations_.emplace(got, size);
    used_ += size;
    return got;
  }
  Status free(void* pointer) {
    const auto found = allocations_.find(pointer);
    if (found == allocations_.end()) {
      return invalid("host_free: ", pointer, " is not the start of an allocation");
    }
    used_ -= found->second;
    give_back(pointer, found->second);
    allocations_.erase(found);
    return {};
  }

  Bytes used() const { return used_; }
  std::int64_t size() const { return static_cast<std::int64_t>(allocations_.size()); }

 private:
  static Bytes page_size() { return static_cast<Bytes>(sysconf(_SC_PAGESIZE)); }
  static void give_back(void* pointer, Bytes size) {
    const Bytes body = align_up(size, page_size());
    ASAN_UNPOISON_MEMORY_REGION(static_cast<char*>(pointer) + size, body - size);
    munmap(pointer, body + page_size());
  }

  std::unordered_map<void*, Bytes> allocations_;
  Bytes used_ = 0;
};

}  // namespace penstock::driver
