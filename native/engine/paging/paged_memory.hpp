// SPDX-License-Identifier: Apache-2.0
// A device whose memory is a heap of the pager: what the allocator reserves, creates and maps here
// takes addresses and nothing else; which chunks are behind them, and when, is the pager's affair.
// So packing and paging are the same allocator over another memory.  Everything else goes to the
// device.  Chunks have one size, the pager's.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "base/interval_map.hpp"
#include "driver/forwarding.hpp"
#include "engine/paging/pager.hpp"

namespace penstock::engine {

class PagedMemory final : public driver::ForwardingDriver {
 public:
  // `start` is called when memory is asked for and the budget is full for the first time; it ends
  // with Pager::start_paging().
  PagedMemory(driver::Driver& device, Pager& pager, Bytes page_bytes, std::function<Status()> start)
      : ForwardingDriver(device), pager_(pager), info_(device.info()), start_(std::move(start)) {
    info_.granularity = page_bytes;
  }

  const driver::DeviceInfo& info() const override { return info_; }

  // Memory reserved from here on stays on the device while it is mapped: it is that of private
  // pools, to which a replayed graph writes without anybody announcing it, freed blocks included.
  void keep_what_follows() { keep_ = true; }

  Result<Addr> reserve(Bytes size) override {
    PENSTOCK_ASSIGN(const Addr address, pager_.create_heap(size));
    const std::lock_guard lock(kept_mutex_);
    if (keep_) kept_.insert(address, address + size, true);
    return address;
  }
  Status unreserve(Addr address, Bytes) override {
    {
      const std::lock_guard lock(kept_mutex_);
      kept_.erase(address);
    }
    return guarded([&] { return pager_.close_heap(address); });
  }
  Result<driver::Chunk> create_chunk(Bytes, driver::Place) override {
    return driver::Chunk{++chunks_};
  }
  Status release_chunk(driver::Chunk) override { return {}; }
  Status map(Addr address, Bytes size, driver::Chunk) override {
    Status status = guarded([&] {
      Status backed = pager_.back(address, size);
      if (backed.code() == Code::kOutOfMemory && !pager_.paging()) {
        PENSTOCK_TRY(start_());
        backed = pager_.back(address, size);
      }
      return backed;
    });
    if (!status.ok() || !kept(address)) return status;
    status = guarded([&] { return pager_.pin(address, size, 1); });
    if (!status.ok()) (void)guarded([&] { return pager_.discard(address, size); });
    return status;
  }
  Status unmap(Addr address, Bytes size) override {
    if (kept(address)) PENSTOCK_TRY(pager_.pin(address, size, -1));
    Status status = guarded([&] { return pager_.discard(address, size); });
    if (!status.ok() && kept(address)) (void)guarded([&] { return pager_.pin(address, size, 1); });
    return status;
  }
  Status set_access(Addr, Bytes) override { return {}; }
  Status share_with(int) override { return lacks("other devices to share with"); }

 private:
  bool kept(Addr address) {
    const std::lock_guard lock(kept_mutex_);
    return kept_.find(address) != nullptr;
  }

  Pager& pager_;
  driver::DeviceInfo info_;
  std::function<Status()> start_;
  std::atomic<std::uint64_t> chunks_{0};
  bool keep_ = false;
  std::mutex kept_mutex_;
  IntervalMap<bool> kept_;
};

}  // namespace penstock::engine
