// SPDX-License-Identifier: Apache-2.0
#include "process/link.hpp"

#include <algorithm>
#include <cstring>

#include "base/undo.hpp"

namespace penstock::engine {

// Leaves nothing behind, whatever fails.
Result<LinkSpeed> measure_link(driver::Driver& driver, Bytes bytes, int repeats) {
  const Bytes size = align_up(std::max<Bytes>(bytes, 1), driver.info().granularity);
  PENSTOCK_ASSIGN(void* const host, driver.host_alloc(size));
  const Undo free_host([&] { (void)driver.host_free(host); });
  std::memset(host, 0x5a, size);
  PENSTOCK_ASSIGN(const Addr address, driver.reserve(size));
  const Undo unreserve([&] { (void)driver.unreserve(address, size); });
  PENSTOCK_ASSIGN(const driver::Chunk chunk, driver.create_chunk(size, driver::Place::kDevice));
  const Undo release([&] { (void)driver.release_chunk(chunk); });
  PENSTOCK_TRY(driver.map_with_access(address, size, chunk));
  const Undo unmap([&] { (void)driver.unmap(address, size); });
  PENSTOCK_ASSIGN(const driver::Event from, driver.create_event(true));
  const Undo destroy_from([&] { (void)driver.destroy_event(from); });
  PENSTOCK_ASSIGN(const driver::Event to, driver.create_event(true));
  const Undo destroy_to([&] { (void)driver.destroy_event(to); });
  PENSTOCK_ASSIGN(const driver::Stream stream, driver.create_stream());
  const Undo end_stream([&] {
    (void)driver.synchronize(stream);
    (void)driver.destroy_stream(stream);
  });
  const auto copy = [&](bool in) -> Result<double> {  // GB/s
    PENSTOCK_TRY(driver.record(from, stream));
    PENSTOCK_TRY(in ? driver.copy_in(address, host, size, stream)
                    : driver.copy_out(host, address, size, stream));
    PENSTOCK_TRY(driver.record(to, stream));
    PENSTOCK_TRY(driver.synchronize(stream));
    PENSTOCK_ASSIGN(const float ms, driver.elapsed_ms(from, to));
    return ms > 0 ? static_cast<double>(size) / 1e6 / ms : 0.0;
  };
  LinkSpeed speed;
  for (int i = 0; i < std::max(repeats, 1) + 1; ++i) {  // the first pair warms up
    PENSTOCK_ASSIGN(const double in, copy(true));
    PENSTOCK_ASSIGN(const double out, copy(false));
    if (i == 0) continue;
    speed.in_gb_per_s = std::max(speed.in_gb_per_s, in);
    speed.out_gb_per_s = std::max(speed.out_gb_per_s, out);
  }
  return speed;
}

}  // namespace penstock::engine
