// SPDX-License-Identifier: Apache-2.0
// Virtual memory management on CUDA: that part of the driver.  Every call holds one lock: the
// driver's own heap has been seen to break when mappings change from several threads at once.  The
// lock is never held while waiting for work. Thread rule: any thread.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "base/units.hpp"
#include "driver/cuda/device.hpp"
#include "driver/driver.hpp"
#include "driver/ledger.hpp"

namespace penstock::driver::cuda {

class CudaMemory : public Driver {
 public:
  explicit CudaMemory(const CudaDevice& device)
      : device_(device),
        symbols_(device.symbols()),
        ledger_(device.info().granularity),
        access_{{device.device_location(), kAccessReadWrite}} {}

  Result<Addr> reserve(Bytes size) override {
    PENSTOCK_TRY(check_supported("reserve", Place::kDevice));
    const std::lock_guard lock(mutex_);
    return ledger_.reserve(size, [&]() -> Result<Addr> {
      DevicePtr address = 0;
      PENSTOCK_TRY(call(symbols_.cuMemAddressReserve, {size}, &address, size,
                        device_.info().granularity, 0, 0));
      return address;
    });
  }

  Status unreserve(Addr address, Bytes size) override {
    const std::lock_guard lock(mutex_);
    return ledger_.unreserve(
        address, size, [&] { return call(symbols_.cuMemAddressFree, {size}, address, size); });
  }

  Result<Chunk> create_chunk(Bytes size, Place place) override {
    PENSTOCK_TRY(check_supported("create_chunk", place));
    const std::lock_guard lock(mutex_);
    return ledger_.create_chunk(size, place, [&]() -> Result<AllocationHandle> {
      const AllocationProperties properties = device_.properties(place);
      AllocationHandle handle = 0;
      PENSTOCK_TRY(call(symbols_.cuMemCreate, {size, place}, &handle, size, &properties, 0));
      return handle;
    });
  }

  // While a mapping keeps it, the driver keeps it too.
  Status release_chunk(Chunk chunk) override {
    const std::lock_guard lock(mutex_);
    return ledger_.release_chunk(chunk, [this](const Ledger::ChunkEntry& entry) {
      return call(symbols_.cuMemRelease, {entry.size}, entry.token);
    });
  }

  Status map(Addr address, Bytes size, Chunk chunk) override {
    const std::lock_guard lock(mutex_);
    return map_to(address, size, chunk);
  }

  Status unmap(Addr address, Bytes size) override {
    const std::lock_guard lock(mutex_);
    return unmap_from(address, size);
  }

  Status set_access(Addr address, Bytes size) override {
    Status status;
    auto pause = std::chrono::microseconds(50);
    for (int attempt = 0; attempt < kSetAccessTries; ++attempt) {
      if (attempt > 0) {
        std::this_thread::sleep_for(pause);
        pause *= 2;
      }
      const std::lock_guard lock(mutex_);
      status = try_set_access(address, size);
      if (status.code() != Code::kNotReady) return status;
    }
    return {Code::kDriver, status.message()};  // here it is a failure
  }

  // A mapping that another thread has made and not yet given access gets it a little early.
  Status share_with_peer(Device peer) {
    std::vector<std::pair<Addr, Bytes>> mapped;
    {
      const std::lock_guard lock(mutex_);
      for (const AccessDescriptor& known : access_) {
        if (known.location.id == peer) return {};
      }
      access_.push_back({{kLocationDevice, peer}, kAccessReadWrite});
      mapped = ledger_.mappings();
    }
    for (const auto& [address, size] : mapped) {
      Status status = set_access(address, size);
      if (status.ok()) continue;
      {
        const std::lock_guard lock(mutex_);
        if (!ledger_.check_mapped("share_with", address, size).ok()) continue;
        status = map_again(address, size);
        if (status.ok()) continue;
        // What is mapped from here on must not fail by it: this device's own access is what counts.
        std::erase_if(access_,
                      [peer](const AccessDescriptor& known) { return known.location.id == peer; });
      }
      const Status own = set_access(address, size);
      return own.ok() ? status : own;
    }
    return {};
  }

  void count_live(LiveCounts& counts) const {
    const std::lock_guard lock(mutex_);
    ledger_.count_live(counts);
  }

  // At the end; nothing on the device may be running on it
  void give_everything_back() {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, size] : ledger_.mappings()) symbols_.cuMemUnmap(address, size);
    for (const auto& chunk : ledger_.held_chunks()) symbols_.cuMemRelease(chunk.token);
    for (const auto& [address, size] : ledger_.ranges()) symbols_.cuMemAddressFree(address, size);
  }

 protected:
  template <class Function, class... Arguments>
  Status call(const Symbol<Function>& symbol, CallFor what, Arguments... arguments) const {
    return device_.call(symbol, what, arguments...);
  }

  const CudaDevice& device_;
  const Symbols& symbols_;

 private:
  // How often cuMemSetAccess is tried while it answers NOT_READY, which it may do when other
  // threads work on the device; with the pauses doubling from 50 us the last try comes after 0.8 s.
  static constexpr int kSetAccessTries = 15;

  Status check_supported(const char* call, Place place) const {
    const DeviceInfo& info = device_.info();
    if (place == Place::kDevice ? info.virtual_memory : info.host_chunks) return {};
    return Status(Code::kUnsupported, call, ": ", info.name, " with CUDA driver ",
                  info.driver_version,
                  place == Place::kDevice ? " has no virtual memory management"
                                          : " cannot map host memory into a range");
  }

  // Under the lock, these and the next.
  Status map_to(Addr address, Bytes size, Chunk chunk) {
    return ledger_.map(address, size, chunk, [&](const Ledger::ChunkEntry& entry) {
      return call(symbols_.cuMemMap, {size}, address, size, 0, entry.token, 0);
    });
  }
  Status unmap_from(Addr address, Bytes size) {
    return ledger_.unmap(address, size, [&](std::int64_t) {
      return call(symbols_.cuMemUnmap, {size}, address, size);
    });
  }
  // kNotReady: try again.
  Status try_set_access(Addr address, Bytes size) {
    return ledger_.set_access(address, size, [&](std::int64_t) {
      return call(symbols_.cuMemSetAccess, {size}, address, size, access_.data(), access_.size());
    });
  }

  // On an H200 (driver 580) CUDA refuses a second device, with CUDA_ERROR_INVALID_VALUE, on pages
  // of a paged program that got the chunks of others; other ways to move chunks about had no
  // trouble. Mapped once more to the same chunk they are accepted.
  Status map_again(Addr address, Bytes size) {
    const Chunk chunk = ledger_.chunk_at(address);
    PENSTOCK_TRY(ledger_.check_chunk("share_with", chunk).status());
    PENSTOCK_TRY(unmap_from(address, size));
    PENSTOCK_TRY(map_to(address, size, chunk));
    return try_set_access(address, size);
  }

  mutable std::mutex mutex_;
  Ledger ledger_;
  std::vector<AccessDescriptor> access_;  // this device first, then those it shares with
};

}  // namespace penstock::driver::cuda
