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

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/driver.hpp"
#include "driver/host_driver.hpp"

namespace penstock::driver {

class HostManaged {
 public:
  explicit HostManaged(Bytes granule) : granule_(granule) {}
  ~HostManaged();
  HostManaged(const HostManaged&) = delete;
  HostManaged& operator=(const HostManaged&) = delete;

  Result<Addr> allocate(Bytes size);
  Status free(Addr address);
  Status check(const char* call, Addr address, Bytes size) const;  // inside one allocation
  Status advise(Addr address, Bytes size, Advice advice);
  // Migrates at once, with `room` for all managed memory on the device; what does not fit stays
  // on the host.  Does nothing for memory that has been freed meanwhile.
  void prefetch(Addr address, Bytes size, Place to, Bytes room);
  void evict_down_to(Bytes room);

  Bytes resident(Addr address, Bytes size) const;  // of the granules that the span touches
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

  Allocation* find(Addr address, Bytes size);
  void for_each(Addr address, Bytes size, const std::function<void(Granule&)>& action);
  void bring_in(Granule& granule, Bytes room);
  void send_out(Granule& granule);  // to the host, under the rule for ReadMostly
  void evict(Granule& granule);
  void drop_from_device(Granule& granule);
  void collapse(Granule& granule);
  static void apply(Granule& granule, Advice advice);

  const Bytes granule_;
  std::map<Addr, Allocation> allocations_;
  std::map<std::uint64_t, Granule*> order_;  // by last migration, the oldest first
  std::uint64_t next_migration_ = 1;
  ManagedCounters counters_;
};

}  // namespace penstock::driver
