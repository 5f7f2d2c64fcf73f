// SPDX-License-Identifier: Apache-2.0
// A driver without memory, for replays: it hands out addresses, chunks, streams and events, has the
// ledger that real drivers have, enforces a capacity, and adds up what the calls would have cost a
// GPU.  Events are complete as soon as they are recorded.  Copies, host memory and managed memory
// are kUnsupported: there are no bytes.
//
// Any thread may call it; one lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"
#include "driver/ledger.hpp"

namespace penstock::driver {

// Microseconds a chunk of up to 32 MiB: creating it, mapping it, giving access to it, unmapping it.
// The defaults were measured on an H200 for one chunk alone while a kernel runs, as a pager moves
// them.  Releasing happens behind the program's back or at its end, and counts nothing.
struct DriverCosts {
  double create_us = 10;
  double map_us = 1.1;
  double set_access_us = 150;
  double unmap_us = 60;
  double release_us = 0;
};

struct MetadataDriverOptions {
  Bytes capacity = 64 * kGiB;  // of device chunks
  Bytes granularity = 2 * kMiB;
  DriverCosts costs = {};
};

struct DriverCalls {
  std::int64_t reserve = 0;
  std::int64_t unreserve = 0;
  std::int64_t create = 0;
  std::int64_t release = 0;
  std::int64_t map = 0;
  std::int64_t unmap = 0;
  std::int64_t unmapped = 0;  // mappings
  std::int64_t set_access = 0;
  std::int64_t accessed = 0;  // mappings
};

double cost_us(const DriverCalls& calls, const DriverCosts& costs);

class MetadataDriver : public Driver {
 public:
  // kInvalidArgument for a granularity that is no power of two from 4 KiB on.
  static Result<std::unique_ptr<MetadataDriver>> open(const MetadataDriverOptions& options);

  [[nodiscard]] DriverCalls calls() const;
  [[nodiscard]] double modelled_us() const;
  [[nodiscard]] Bytes used() const;  // chunks that are held or mapped
  [[nodiscard]] Bytes peak() const;

  const DeviceInfo& info() const override { return info_; }
  LiveCounts live() const override;
  Result<MemoryInfo> memory_info() override;

  Result<Addr> reserve(Bytes size) override;
  Status unreserve(Addr address, Bytes size) override;
  Result<Chunk> create_chunk(Bytes size, Place place) override;
  Status release_chunk(Chunk chunk) override;
  Status map(Addr address, Bytes size, Chunk chunk) override;
  Status unmap(Addr address, Bytes size) override;
  Status set_access(Addr address, Bytes size) override;
  Status share_with(int) override { return no_bytes(); }
  Status synchronize_device() override { return {}; }

  Result<void*> host_alloc(Bytes) override { return no_bytes(); }
  Status host_free(void*) override { return no_bytes(); }
  Result<Addr> managed_alloc(Bytes) override { return no_bytes(); }
  Status managed_free(Addr) override { return no_bytes(); }
  Status managed_advise(Addr, Bytes, Advice) override { return no_bytes(); }
  Status managed_prefetch(Addr, Bytes, Place, Stream) override { return no_bytes(); }

  Result<Stream> create_stream() override;
  Status destroy_stream(Stream) override;
  Status synchronize(Stream) override { return {}; }

  Result<Event> create_event(bool timing) override;
  Status destroy_event(Event) override;
  Status record(Event, Stream) override { return {}; }
  Status wait(Stream, Event) override { return {}; }
  Status query(Event) override { return {}; }
  Status synchronize(Event) override { return {}; }
  Result<float> elapsed_ms(Event, Event) override { return no_bytes(); }

  Status copy_in(Addr, const void*, Bytes, Stream) override { return no_bytes(); }
  Status copy_out(void*, Addr, Bytes, Stream) override { return no_bytes(); }
  Status copy_out_changed(void*, Addr, Bytes, Fingerprint*, Stream) override { return no_bytes(); }
  Status copy_within(Addr, Addr, Bytes, Stream) override { return no_bytes(); }
  Status fill(Addr, std::uint8_t, Bytes, Stream) override { return no_bytes(); }

 protected:
  explicit MetadataDriver(const MetadataDriverOptions& options);
  static Status check(const MetadataDriverOptions& options);

  DeviceInfo info_;

 private:
  static Status no_bytes();
  void give_back(const std::vector<Ledger::ChunkEntry>& chunks);

  const MetadataDriverOptions options_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  std::unordered_map<Bytes, std::vector<Addr>> spare_ranges_;  // by size
  Addr next_;                                                  // where addresses are still unused
  Bytes used_ = 0;
  Bytes peak_ = 0;
  DriverCalls calls_;

  std::atomic<std::uint64_t> next_stream_{1};
  std::atomic<std::uint64_t> next_event_{1};
  std::atomic<std::int64_t> streams_{0};
  std::atomic<std::int64_t> events_{0};
};

}  // namespace penstock::driver
