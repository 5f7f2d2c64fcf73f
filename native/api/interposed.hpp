// SPDX-License-Identifier: Apache-2.0
// What the rest of the library asks of the engine behind the driver proxy, where there is one: a
// framework's allocator in such a process is the paged one.
#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/penstock.h"

namespace penstock::api {

bool interposed();
// The paged allocator of a device, made when it is first asked for; null, with the reason in
// penstock_last_error(), where it cannot be.
penstock_allocator* interposed_allocator(int ordinal);

// A window of addresses, which several devices widen at once, never shrinks: who finds an address
// outside takes it for somebody else's.  The wider end first: a reader in between sees a window
// that is too wide or not there yet.
inline void widen(std::atomic<std::uint64_t>& begin, std::atomic<std::uint64_t>& end,
                  std::uint64_t low, std::uint64_t high) {
  if (low == high) return;
  std::uint64_t seen = end;
  while (high > seen && !end.compare_exchange_weak(seen, high)) {
  }
  seen = begin;
  while ((seen == 0 || low < seen) && !begin.compare_exchange_weak(seen, low)) {
  }
}

}  // namespace penstock::api
