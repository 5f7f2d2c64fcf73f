// SPDX-License-Identifier: Apache-2.0
// Managed memory of the emulated GPU.  The bytes are an ordinary mapping that is always accessible;
// what is emulated is residency, in granules, by the rules read in the kernel driver's source:
//  * the device evicts what was least recently migrated; a kernel's access does not count;
//  * a granule under ReadMostly that is resident keeps its host copy, so evicting it copies
//  nothing;
//  * a prefetch to the host does not release a ReadMostly granule (measured on an H200: the device
//    copy stays and reads go on at 2,550 GB/s); taking ReadMostly away collapses it to one copy.
// Thread rule: none of its own; the driver's memory lock guards every call.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/emulated/driver.hpp"
#include "driver/text.hpp"

namespace penstock::driver {

class HostManaged {
 public:
  explicit HostManaged(Bytes granule) : granule_(granule) {}
  ~HostManaged() {
    for (const auto& [address, allocation] : allocations_) {
      munmap(reinterpret_cast<void*>(address), allocation.size);
    }
  }
  HostManaged(const HostManaged&) = delete;
  HostManaged& operator=(const HostManaged&) = delete;

  Result<Addr> allocate(Bytes size) {
    if (size == 0) return invalid("managed_alloc: size 0");
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
      return Status(Code::kOutOfMemory, "managed_alloc of ", size_text(size), ": ",
                    std::strerror(errno));
    }
    const auto address = reinterpret_cast<Addr>(got);
    Allocation& allocation = allocations_[address];
    allocation.size = size;
    allocation.granules.resize(divide_up(size, granule_));
    return address;
  }

  Status free(Addr address) {
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) {
      return invalid("managed_free: ", address_text(address), " is not the start of an allocation");
    }
    for (Granule& granule : found->second.granules) {
      if (granule.on_device) drop_from_device(granule);
    }
    munmap(reinterpret_cast<void*>(address), found->second.size);
    allocations_.erase(found);
    return {};
  }

  // Inside one allocation.
  Status check(const char* call, Addr address, Bytes size) const {
    if (size != 0 && const_cast<HostManaged*>(this)->find(address, size) != nullptr) return {};
    return invalid(call, ": ", span_text(address, size), " is not inside one managed allocation");
  }

  Status advise(Addr address, Bytes size, Advice advice) {
    PENSTOCK_TRY(check("managed_advise", address, size));
    for_each(address, size, [&](Granule& granule) {
      apply(granule, advice);
      if (advice == Advice::kUnsetReadMostly) collapse(granule);
    });
    return {};
  }

  // Migrates at once, with `room` for all managed memory on the device; what does not fit stays
  // on the host.  Does nothing for memory that has been freed meanwhile.
  void prefetch(Addr address, Bytes size, Place to, Bytes room) {
    for_each(address, size, [&](Granule& granule) {
      if (to == Place::kDevice) {
        bring_in(granule, room);
      } else {
        send_out(granule);
      }
    });
  }

  void evict_down_to(Bytes room) {
    while (counters_.resident > room) evict(*order_.begin()->second);
  }

  // Of the granules that the span touches.
  Bytes resident(Addr address, Bytes size) const {
    Bytes total = 0;
    const_cast<HostManaged*>(this)->for_each(address, size, [&](const Granule& granule) {
      if (granule.on_device) total += granule_;
    });
    return total;
  }
  const ManagedCounters& counters() const { return counters_; }
  std::int64_t size() const { return static_cast<std::int64_t>(allocations_.size()); }

 private:
  struct Granule {
    bool on_device = false;
    bool on_host = true;
    bool read_mostly = false;
    bool prefer_device = false;
    std::uint64_t migrated = 0;  // its key in order_ while on the device
  };
  struct Allocation {
    Bytes size = 0;
    std::vector<Granule> granules;
  };

  Allocation* find(Addr address, Bytes size) {
    auto found = allocations_.upper_bound(address);
    if (found == allocations_.begin()) return nullptr;
    --found;
    const Bytes offset = address - found->first;
    const Bytes whole = found->second.size;
    return offset < whole && size <= whole - offset ? &found->second : nullptr;
  }

  // Every granule that the span touches, whole.
  void for_each(Addr address, Bytes size, const std::function<void(Granule&)>& action) {
    Allocation* allocation = find(address, size);
    if (allocation == nullptr) return;
    const Addr base = std::prev(allocations_.upper_bound(address))->first;
    const Bytes first = (address - base) / granule_;
    const Bytes last = divide_up(address - base + size, granule_);
    for (Bytes index = first; index < last; ++index) action(allocation->granules[index]);
  }

  void bring_in(Granule& granule, Bytes room) {
    if (granule.on_device) {
      order_.erase(granule.migrated);
    } else {
      if (room < granule_) return;
      evict_down_to(room - granule_);
      counters_.bytes_in += granule_;
      counters_.resident += granule_;
      granule.on_device = true;
      granule.on_host = granule.read_mostly;
    }
    granule.migrated = next_migration_++;
    order_.emplace(granule.migrated, &granule);
  }

  // To the host, under the rule for ReadMostly.
  void send_out(Granule& granule) {
    if (!granule.on_device) return;
    if (!granule.read_mostly) {
      evict(granule);
    } else if (!granule.on_host) {
      counters_.bytes_out += granule_;
      granule.on_host = true;
    }
  }

  void evict(Granule& granule) {
    if (!granule.on_host) counters_.bytes_out += granule_;
    drop_from_device(granule);
  }

  void drop_from_device(Granule& granule) {
    order_.erase(granule.migrated);
    counters_.resident -= granule_;
    granule.on_device = false;
    granule.on_host = true;
  }

  // One copy of two: the preferred one, or the host's where none is preferred.
  void collapse(Granule& granule) {
    if (!granule.on_device || !granule.on_host) return;
    if (granule.prefer_device) {
      granule.on_host = false;
    } else {
      drop_from_device(granule);
    }
  }

  static void apply(Granule& granule, Advice advice) {
    switch (advice) {
      case Advice::kReadMostly:
        granule.read_mostly = true;
        break;
      case Advice::kUnsetReadMostly:
        granule.read_mostly = false;
        break;
      case Advice::kPreferDevice:
        granule.prefer_device = true;
        break;
      case Advice::kPreferHost:
      case Advice::kUnsetPreferred:
        granule.prefer_device = false;
        break;
      case Advice::kMapOnDevice:  // everything is mapped here
        break;
    }
  }

  const Bytes granule_;
  std::map<Addr, Allocation> allocations_;
  std::map<std::uint64_t, Granule*> order_;  // by last migration, the oldest first
  std::uint64_t next_migration_ = 1;
  ManagedCounters counters_;
};

}  // namespace penstock::driver
