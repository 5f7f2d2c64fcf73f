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
#include "driver/driver.hpp"
#include "engine/pager.hpp"

namespace penstock::engine {

class PagedMemory final : public driver::Driver {
 public:
  // `start` is called when memory is asked for and the budget is full for the first time; it ends
  // with Pager::start_paging().
  PagedMemory(driver::Driver& device, Pager& pager, Bytes page_bytes, std::function<Status()> start)
      : device_(device), pager_(pager), info_(device.info()), start_(std::move(start)) {
    info_.granularity = page_bytes;
  }

  const driver::DeviceInfo& info() const override { return info_; }
  driver::LiveCounts live() const override { return device_.live(); }
  Result<driver::MemoryInfo> memory_info() override { return device_.memory_info(); }

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
    return pager_.close_heap(address);
  }
  Result<driver::Chunk> create_chunk(Bytes, driver::Place) override {
    return driver::Chunk{++chunks_};
  }
  Status release_chunk(driver::Chunk) override { return {}; }
  Status map(Addr address, Bytes size, driver::Chunk) override {
    Status status = pager_.back(address, size);
    if (status.code() == Code::kOutOfMemory && !pager_.paging()) {
      PENSTOCK_TRY(start_());
      status = pager_.back(address, size);
    }
    if (!status.ok() || !kept(address)) return status;
    status = pager_.pin(address, size, 1);
    if (!status.ok()) (void)pager_.discard(address, size);
    return status;
  }
  Status unmap(Addr address, Bytes size) override {
    if (kept(address)) PENSTOCK_TRY(pager_.pin(address, size, -1));
    return pager_.discard(address, size);
  }
  Status set_access(Addr, Bytes) override { return {}; }
  Status share_with(int) override {
    return {Code::kUnsupported, "paged memory is not shared with other devices"};
  }

  Result<void*> host_alloc(Bytes size) override { return device_.host_alloc(size); }
  Status host_free(void* pointer) override { return device_.host_free(pointer); }
  Result<Addr> managed_alloc(Bytes size) override { return device_.managed_alloc(size); }
  Status managed_free(Addr address) override { return device_.managed_free(address); }
  Status managed_advise(Addr address, Bytes size, driver::Advice advice) override {
    return device_.managed_advise(address, size, advice);
  }
  Status managed_prefetch(Addr address, Bytes size, driver::Place to,
                          driver::Stream stream) override {
    return device_.managed_prefetch(address, size, to, stream);
  }

  Result<driver::Stream> create_stream() override { return device_.create_stream(); }
  Status destroy_stream(driver::Stream stream) override { return device_.destroy_stream(stream); }
  Status synchronize(driver::Stream stream) override { return device_.synchronize(stream); }
  Status synchronize_device() override { return device_.synchronize_device(); }
  Result<driver::Event> create_event(bool timing) override { return device_.create_event(timing); }
  Status destroy_event(driver::Event event) override { return device_.destroy_event(event); }
  Status record(driver::Event event, driver::Stream stream) override {
    return device_.record(event, stream);
  }
  Status wait(driver::Stream stream, driver::Event event) override {
    return device_.wait(stream, event);
  }
  Status query(driver::Event event) override { return device_.query(event); }
  Status synchronize(driver::Event event) override { return device_.synchronize(event); }
  Result<float> elapsed_ms(driver::Event from, driver::Event to) override {
    return device_.elapsed_ms(from, to);
  }

  Status copy_in(Addr to, const void* from, Bytes size, driver::Stream stream) override {
    return device_.copy_in(to, from, size, stream);
  }
  Status copy_out(void* to, Addr from, Bytes size, driver::Stream stream) override {
    return device_.copy_out(to, from, size, stream);
  }
  Status copy_out_changed(void* to, Addr from, Bytes size, driver::Fingerprint* fingerprint,
                          driver::Stream stream) override {
    return device_.copy_out_changed(to, from, size, fingerprint, stream);
  }
  Status copy_within(Addr to, Addr from, Bytes size, driver::Stream stream) override {
    return device_.copy_within(to, from, size, stream);
  }
  Status fill(Addr to, std::uint8_t value, Bytes size, driver::Stream stream) override {
    return device_.fill(to, value, size, stream);
  }

 private:
  bool kept(Addr address) {
    const std::lock_guard lock(kept_mutex_);
    return kept_.find(address) != nullptr;
  }

  driver::Driver& device_;
  Pager& pager_;
  driver::DeviceInfo info_;
  std::function<Status()> start_;
  std::atomic<std::uint64_t> chunks_{0};
  bool keep_ = false;
  std::mutex kept_mutex_;
  IntervalMap<bool> kept_;
};

}  // namespace penstock::engine
