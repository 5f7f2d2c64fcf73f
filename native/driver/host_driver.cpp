// SPDX-License-Identifier: Apache-2.0
// The emulated GPU put together: memory, managed memory and page-locked memory under one lock,
// streams and events under their own.  Work in a stream touches memory without any lock, as a
// kernel does.  Invariant: chunks plus resident managed memory never exceed the capacity.
#include "driver/host_driver.hpp"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "driver/host_event.hpp"
#include "driver/host_fault.hpp"
#include "driver/host_managed.hpp"
#include "driver/host_memory.hpp"
#include "driver/host_page_locked.hpp"
#include "driver/host_stream.hpp"
#include "driver/text.hpp"

namespace penstock::driver {
namespace {

void* pointer(Addr address) { return reinterpret_cast<void*>(address); }

// Nothing may be passed for nothing, which memcpy does not allow.
void copy(void* to, const void* from, Bytes size) {
  if (size != 0) std::memcpy(to, from, size);
}

class EmulatedGpu final : public HostDriver {
 public:
  EmulatedGpu(const HostDriverOptions& options, std::unique_ptr<HostMemory> memory);

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
  Status share_with(int) override {
    return {Code::kUnsupported, "the emulated GPU is the only one"};
  }

  Result<void*> host_alloc(Bytes size) override;
  Status host_free(void* allocation) override;

  Result<Addr> managed_alloc(Bytes size) override;
  Status managed_free(Addr address) override;
  Status managed_advise(Addr address, Bytes size, Advice advice) override;
  Status managed_prefetch(Addr address, Bytes size, Place to, Stream stream) override;

  Result<Stream> create_stream() override;
  Status destroy_stream(Stream stream) override { return streams_.destroy(stream); }
  Status synchronize(Stream stream) override { return streams_.synchronize(stream); }
  Status synchronize_device() override { return streams_.synchronize_all(); }

  Result<Event> create_event(bool timing) override;
  Status destroy_event(Event event) override { return events_.destroy(event); }
  Status record(Event event, Stream stream) override;
  Status wait(Stream stream, Event event) override;
  Status query(Event event) override { return events_.query(event); }
  Status synchronize(Event event) override;
  Result<float> elapsed_ms(Event from, Event to) override;

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override;
  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override;
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                          Stream stream) override;
  Status copy_within(Addr to, Addr from, Bytes size, Stream stream) override;
  Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) override;

  Status launch(Stream stream, std::function<void()> work) override;
  std::int64_t calls() const override { return fault_.calls(); }
  ManagedCounters managed_counters() const override;
  Bytes managed_resident(Addr address, Bytes size) const override;

 private:
  Status check_host_room(const char* call, Bytes size) const;
  Status make_device_room(Bytes size);
  Bytes managed_room() const { return options_.capacity - memory_->used(Place::kDevice); }

  const HostDriverOptions options_;
  DeviceInfo info_;
  HostFault fault_;
  mutable std::mutex memory_mutex_;  // guards the three below
  const std::unique_ptr<HostMemory> memory_;
  HostManaged managed_;
  HostPageLocked page_locked_;
  HostEvents events_;
  HostStreams streams_;  // last: destroyed first, when its work may still need all of the above
};

EmulatedGpu::EmulatedGpu(const HostDriverOptions& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      fault_(options.fail_at_call),
      memory_(std::move(memory)),
      managed_(options.granularity),
      streams_(options.seed, options.max_delay_us) {
  info_.name = "emulated GPU";
  info_.total = options.capacity;
  info_.granularity = options.granularity;
  info_.virtual_memory = true;
  info_.host_chunks = true;
  info_.managed = true;
  info_.concurrent_managed = true;
  info_.emulated = true;
}

LiveCounts EmulatedGpu::live() const {
  LiveCounts counts;
  {
    const std::lock_guard lock(memory_mutex_);
    memory_->ledger().count_live(counts);
    counts.host_allocations = page_locked_.size();
    counts.managed_allocations = managed_.size();
  }
  counts.streams = streams_.size();
  counts.events = events_.size();
  return counts;
}

Result<MemoryInfo> EmulatedGpu::memory_info() {
  PENSTOCK_TRY(fault_.count());
  const std::lock_guard lock(memory_mutex_);
  return MemoryInfo{.free = managed_room() - managed_.counters().resident,
                    .total = options_.capacity};
}

Result<Addr> EmulatedGpu::reserve(Bytes size) {
  PENSTOCK_TRY(fault_.count(Code::kOutOfMemory));
  const std::lock_guard lock(memory_mutex_);
  return memory_->reserve(size);
}

Status EmulatedGpu::unreserve(Addr address, Bytes size) {
  const std::lock_guard lock(memory_mutex_);
  return memory_->unreserve(address, size);
}

// Chunks push managed memory out, as they do on a GPU, but not one another.
Status EmulatedGpu::make_device_room(Bytes size) {
  const Bytes used = memory_->used(Place::kDevice);
  const Bytes room = options_.capacity - used;
  if (size > room) {
    return {Code::kOutOfMemory,
            text("create_chunk: ", size_text(size), " asked, ", size_text(room), " free of ",
                 size_text(options_.capacity), " on the emulated GPU")};
  }
  managed_.evict_down_to(room - size);
  return {};
}

Status EmulatedGpu::check_host_room(const char* call, Bytes size) const {
  if (options_.host_capacity == 0) return {};
  const Bytes used = memory_->used(Place::kHost) + page_locked_.used();
  if (size <= options_.host_capacity - used) return {};
  return {Code::kHostOutOfMemory,
          text(call, ": ", size_text(size), " asked, ", size_text(options_.host_capacity - used),
               " left of ", size_text(options_.host_capacity), " of page-locked memory")};
}

Result<Chunk> EmulatedGpu::create_chunk(Bytes size, Place place) {
  const bool device = place == Place::kDevice;
  PENSTOCK_TRY(fault_.count(device ? Code::kOutOfMemory : Code::kHostOutOfMemory));
  const std::lock_guard lock(memory_mutex_);
  PENSTOCK_TRY(memory_->ledger().check_size("create_chunk", size));
  PENSTOCK_TRY(device ? make_device_room(size) : check_host_room("create_chunk", size));
  return memory_->create_chunk(size, place);
}

Status EmulatedGpu::release_chunk(Chunk chunk) {
  const std::lock_guard lock(memory_mutex_);
  return memory_->release_chunk(chunk);
}

Status EmulatedGpu::map(Addr address, Bytes size, Chunk chunk) {
  PENSTOCK_TRY(fault_.count());
  const std::lock_guard lock(memory_mutex_);
  if (options_.most_mappings > 0) {
    PENSTOCK_ASSIGN(const Ledger::ChunkEntry entry, memory_->ledger().check_chunk("map", chunk));
    if (entry.mappings >= options_.most_mappings) {
      return {Code::kDriver, "map: the chunk is mapped at as many addresses as can be"};
    }
  }
  return memory_->map(address, size, chunk);
}

Status EmulatedGpu::unmap(Addr address, Bytes size) {
  const std::lock_guard lock(memory_mutex_);
  return memory_->unmap(address, size);
}

Status EmulatedGpu::set_access(Addr address, Bytes size) {
  PENSTOCK_TRY(fault_.count());
  const std::lock_guard lock(memory_mutex_);
  return memory_->set_access(address, size);
}

Result<void*> EmulatedGpu::host_alloc(Bytes size) {
  PENSTOCK_TRY(fault_.count(Code::kHostOutOfMemory));
  const std::lock_guard lock(memory_mutex_);
  PENSTOCK_TRY(check_host_room("host_alloc", size));
  return page_locked_.allocate(size);
}

Status EmulatedGpu::host_free(void* allocation) {
  const std::lock_guard lock(memory_mutex_);
  return page_locked_.free(allocation);
}

Result<Addr> EmulatedGpu::managed_alloc(Bytes size) {
  PENSTOCK_TRY(fault_.count(Code::kOutOfMemory));
  const std::lock_guard lock(memory_mutex_);
  return managed_.allocate(size);
}

Status EmulatedGpu::managed_free(Addr address) {
  const std::lock_guard lock(memory_mutex_);
  return managed_.free(address);
}

Status EmulatedGpu::managed_advise(Addr address, Bytes size, Advice advice) {
  PENSTOCK_TRY(fault_.count());
  const std::lock_guard lock(memory_mutex_);
  return managed_.advise(address, size, advice);
}

Status EmulatedGpu::managed_prefetch(Addr address, Bytes size, Place to, Stream stream) {
  PENSTOCK_TRY(fault_.count());
  {
    const std::lock_guard lock(memory_mutex_);
    PENSTOCK_TRY(managed_.check("managed_prefetch", address, size));
  }
  return streams_.enqueue(stream, [this, address, size, to] {
    const std::lock_guard lock(memory_mutex_);
    managed_.prefetch(address, size, to, managed_room());
  });
}

ManagedCounters EmulatedGpu::managed_counters() const {
  const std::lock_guard lock(memory_mutex_);
  return managed_.counters();
}

Bytes EmulatedGpu::managed_resident(Addr address, Bytes size) const {
  const std::lock_guard lock(memory_mutex_);
  return managed_.resident(address, size);
}

Result<Stream> EmulatedGpu::create_stream() {
  PENSTOCK_TRY(fault_.count(Code::kOutOfMemory));
  return streams_.create();
}

Result<Event> EmulatedGpu::create_event(bool timing) {
  PENSTOCK_TRY(fault_.count(Code::kOutOfMemory));
  return events_.create(timing);
}

// The event changes its meaning only once the work that completes it is in the stream.
Status EmulatedGpu::record(Event event, Stream stream) {
  PENSTOCK_TRY(fault_.count());
  if (auto known = events_.last(event); !known.ok()) return known.status();
  auto recording = std::make_shared<HostRecording>();
  PENSTOCK_TRY(streams_.enqueue(stream, [recording] { recording->complete(); }));
  return events_.record(event, std::move(recording));
}

Status EmulatedGpu::wait(Stream stream, Event event) {
  PENSTOCK_TRY(fault_.count());
  PENSTOCK_ASSIGN(HostRecordingPtr recording, events_.last(event));
  return streams_.enqueue(stream, [recording = std::move(recording)] {
    if (recording != nullptr) recording->wait();
  });
}

Status EmulatedGpu::synchronize(Event event) {
  PENSTOCK_ASSIGN(const HostRecordingPtr recording, events_.last(event));
  if (recording != nullptr) recording->wait();
  return {};
}

Result<float> EmulatedGpu::elapsed_ms(Event from, Event to) {
  PENSTOCK_TRY(fault_.count());
  return events_.elapsed_ms(from, to);
}

Status EmulatedGpu::copy_in(Addr to, const void* from, Bytes size, Stream stream) {
  return launch(stream, [=] { copy(pointer(to), from, size); });
}

Status EmulatedGpu::copy_out(void* to, Addr from, Bytes size, Stream stream) {
  return launch(stream, [=] { copy(to, pointer(from), size); });
}

Status EmulatedGpu::copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                     Stream stream) {
  PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
  return launch(stream, [=] {
    if (fingerprint->valid != 0 && std::memcmp(to, pointer(from), size) == 0) return;
    copy(to, pointer(from), size);
    fingerprint->valid = 1;
    ++std::atomic_ref(fingerprint->copies);  // read at any time, as the host reads a device's
  });
}

Status EmulatedGpu::copy_within(Addr to, Addr from, Bytes size, Stream stream) {
  PENSTOCK_TRY(fault_.count());
  PENSTOCK_TRY(check_apart(to, from, size));
  return streams_.enqueue(stream, [=] { copy(pointer(to), pointer(from), size); });
}

Status EmulatedGpu::fill(Addr to, std::uint8_t value, Bytes size, Stream stream) {
  return launch(stream, [=] {
    if (size != 0) std::memset(pointer(to), value, size);
  });
}

Status EmulatedGpu::launch(Stream stream, std::function<void()> work) {
  PENSTOCK_TRY(fault_.count());
  return streams_.enqueue(stream, std::move(work));
}

}  // namespace

Result<std::unique_ptr<HostDriver>> open_host_driver(const HostDriverOptions& options) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  if (!std::has_single_bit(options.granularity) || options.granularity < page) {
    return Status(Code::kInvalidArgument,
                  text("emulated GPU: granularity ", options.granularity,
                       " is not a power of two of at least ", size_text(page)));
  }
  if (options.capacity == 0) {
    return Status(Code::kInvalidArgument, "emulated GPU: capacity 0");
  }
  PENSTOCK_ASSIGN(auto memory, HostMemory::open(options.granularity));
  return std::unique_ptr<HostDriver>(std::make_unique<EmulatedGpu>(options, std::move(memory)));
}

}  // namespace penstock::driver
