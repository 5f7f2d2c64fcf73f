// SPDX-License-Identifier: Apache-2.0
// The emulated GPU put together: memory, managed memory and page-locked memory under one lock,
// streams and events under their own.  Work in a stream touches memory without any lock, as a
// kernel does.  Invariant: chunks plus resident managed memory never exceed the capacity.
#include "driver/emulated/driver.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "codec/digest.hpp"
#include "driver/emulated/event.hpp"
#include "driver/emulated/managed.hpp"
#include "driver/emulated/memory.hpp"
#include "driver/emulated/page_locked.hpp"
#include "driver/emulated/stream.hpp"
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

  LiveCounts live() const override {
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

  Result<MemoryInfo> memory_info() override {
    PENSTOCK_TRY(count());
    const std::lock_guard lock(memory_mutex_);
    return MemoryInfo{managed_room() - managed_.counters().resident, options_.capacity};
  }

  Result<Addr> reserve(Bytes size) override {
    return failable(Code::kOutOfMemory, [&] { return memory_->reserve(size); });
  }

  Status unreserve(Addr address, Bytes size) override {
    return locked([&] { return memory_->unreserve(address, size); });
  }

  Result<Chunk> create_chunk(Bytes size, Place place) override {
    const bool device = place == Place::kDevice;
    PENSTOCK_TRY(count(device ? Code::kOutOfMemory : Code::kHostOutOfMemory));
    const std::lock_guard lock(memory_mutex_);
    return memory_->create_chunk(size, place, [&] {
      return device ? make_device_room(size) : check_host_room("create_chunk", size);
    });
  }

  Status release_chunk(Chunk chunk) override {
    return locked([&] { return memory_->release_chunk(chunk); });
  }

  Status map(Addr address, Bytes size, Chunk chunk) override {
    return failable(Code::kDriver,
                    [&] { return memory_->map(address, size, chunk, options_.most_mappings); });
  }

  Status unmap(Addr address, Bytes size) override {
    return locked([&] { return memory_->unmap(address, size); });
  }

  Status set_access(Addr address, Bytes size) override {
    return failable(Code::kDriver, [&] { return memory_->set_access(address, size); });
  }

  Result<void*> host_alloc(Bytes size) override {
    PENSTOCK_TRY(count(Code::kHostOutOfMemory));
    const std::lock_guard lock(memory_mutex_);
    PENSTOCK_TRY(check_host_room("host_alloc", size));
    return page_locked_.allocate(size);
  }

  Status host_free(void* allocation) override {
    return locked([&] { return page_locked_.free(allocation); });
  }

  Result<Addr> managed_alloc(Bytes size) override {
    return failable(Code::kOutOfMemory, [&] { return managed_.allocate(size); });
  }

  Status managed_free(Addr address) override {
    return locked([&] { return managed_.free(address); });
  }

  Status managed_advise(Addr address, Bytes size, Advice advice) override {
    return failable(Code::kDriver, [&] { return managed_.advise(address, size, advice); });
  }

  Status managed_prefetch(Addr address, Bytes size, Place to, Stream stream) override {
    PENSTOCK_TRY(count());
    PENSTOCK_TRY(locked([&] { return managed_.check("managed_prefetch", address, size); }));
    return streams_.enqueue(stream, [this, address, size, to] {
      const std::lock_guard lock(memory_mutex_);
      managed_.prefetch(address, size, to, managed_room());
    });
  }

  Result<Stream> create_stream() override {
    PENSTOCK_TRY(count(Code::kOutOfMemory));
    return streams_.create();
  }

  Status destroy_stream(Stream stream) override { return streams_.destroy(stream); }
  Status synchronize(Stream stream) override { return streams_.synchronize(stream); }
  Status synchronize_device() override { return streams_.synchronize_all(); }

  Result<bool> capturing(Stream stream) override {
    PENSTOCK_ASSIGN(const HostCapturePtr capture, streams_.capture(stream));
    return capture != nullptr;
  }

  Result<Event> create_event(bool timing) override {
    PENSTOCK_TRY(count(Code::kOutOfMemory));
    return events_.create(timing);
  }

  Status destroy_event(Event event) override { return events_.destroy(event); }

  // The event changes its meaning only once the work that completes it is in the stream.
  Status record(Event event, Stream stream) override {
    PENSTOCK_TRY(count());
    if (auto known = events_.last(event); !known.ok()) return known.status();
    PENSTOCK_ASSIGN(HostRecordingPtr recording, streams_.record(stream));
    return events_.record(event, std::move(recording));
  }

  Status wait(Stream stream, Event event) override {
    PENSTOCK_TRY(count());
    PENSTOCK_ASSIGN(const HostRecordingPtr recording, events_.last(event));
    return streams_.wait(stream, recording);
  }

  Status query(Event event) override { return events_.query(event); }
  Status synchronize(Event event) override { return events_.synchronize(event); }

  Result<float> elapsed_ms(Event from, Event to) override {
    PENSTOCK_TRY(count());
    return events_.elapsed_ms(from, to);
  }

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override {
    return launch(stream, [=] { copy(pointer(to), from, size); });
  }

  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override {
    return launch(stream, [=] { copy(to, pointer(from), size); });
  }

  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint, bool still,
                          Stream stream) override {
    PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
    return launch(stream, [=] {
      const bool known = fingerprint->valid != 0;
      const auto* const page = static_cast<const std::byte*>(pointer(from));
      const std::uint64_t was = std::exchange(fingerprint->place, codec::digest({page, size}));
      const bool same = known && was == fingerprint->place;
      if (!same || !still) copy(to, pointer(from), size);
      // Read at any time, as the host reads what a device writes.
      std::atomic_ref(fingerprint->valid).store(1);
      if (!same && known) ++std::atomic_ref(fingerprint->changes);
      if (!same && still) ++std::atomic_ref(fingerprint->late);
    });
  }

  Status copy_within(Addr to, Addr from, Bytes size, Stream stream) override {
    PENSTOCK_TRY(count());
    PENSTOCK_TRY(check_apart({to, size}, {from, size}));
    return streams_.enqueue(stream, [=] { copy(pointer(to), pointer(from), size); });
  }

  Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) override {
    return launch(stream, [=] {
      if (size != 0) std::memset(pointer(to), value, size);
    });
  }

  Status survey(Addr counts, Addr raw, Bytes size, Stream stream) override {
    PENSTOCK_TRY(count());
    PENSTOCK_TRY(check_codes("survey", {counts, sizeof(codec::Counts)}, {raw, size}));
    return streams_.enqueue(stream, [=] {
      const auto found = codec::counts_of({static_cast<const std::byte*>(pointer(raw)), size});
      auto* const sums = static_cast<std::uint32_t*>(pointer(counts));
      for (std::size_t i = 0; i < found.size(); ++i) sums[i] += found[i];
    });
  }

  Status encode(Addr to, Addr from, const codec::Survey& survey, Stream stream) override {
    PENSTOCK_TRY(count());
    const codec::Shape& shape = survey.shape;
    PENSTOCK_TRY(check_codes("encode", {to, shape.size()}, {from, shape.raw_bytes}));
    if (shape.raw_bytes == 0) return invalid("encode: of nothing");
    return streams_.enqueue(stream, [=] {
      const std::span raw(static_cast<const std::byte*>(pointer(from)), survey.shape.raw_bytes);
      codec::encode(survey, raw, {static_cast<std::byte*>(pointer(to)), survey.shape.size()});
    });
  }

  // Fatal where the code is not whole: somebody else has written there, or not all had arrived.
  Status decode(Addr to, Addr from, const codec::Shape& shape, Stream stream) override {
    PENSTOCK_TRY(count());
    PENSTOCK_TRY(check_codes("decode", {to, shape.raw_bytes}, {from, shape.size()}));
    return streams_.enqueue(stream, [=] {
      const std::span code(static_cast<const std::byte*>(pointer(from)), shape.size());
      const std::span raw(static_cast<std::byte*>(pointer(to)), shape.raw_bytes);
      const Status status = codec::decode(code, raw);
      if (status.ok()) return;
      std::fprintf(stderr, "emulated GPU: %s\n", status.message().c_str());
      std::abort();
    });
  }

  Status launch(Stream stream, std::function<void()> work) override {
    PENSTOCK_TRY(count());
    return streams_.enqueue(stream, std::move(work));
  }

  Status begin_capture(Stream stream) override { return streams_.begin_capture(stream); }
  Result<HostGraph> end_capture(Stream stream) override { return streams_.end_capture(stream); }

  Status launch_graph(Stream stream, const HostGraph& graph) override {
    return launch(stream, [graph] {
      for (const auto& work : *graph) work();
    });
  }

  void break_captures() override { streams_.break_captures(); }
  std::int64_t captures() const override { return streams_.captures(); }
  std::int64_t dead_uses() const override { return streams_.dead_uses(); }
  std::int64_t calls() const override { return calls_; }

  ManagedCounters managed_counters() const override {
    return locked([&] { return managed_.counters(); });
  }

  Bytes managed_resident(Addr address, Bytes size) const override {
    return locked([&] { return managed_.resident(address, size); });
  }

 private:
  // Called first by every call that can fail; `code` is what such a failure would be in life.  With
  // several threads the Nth call is that in the order in which they get here.
  Status count(Code code = Code::kDriver) {
    const std::int64_t call = ++calls_;
    const std::int64_t at = options_.fail_at_call;
    if (at >= 0 ? call != at : call < -at) return {};
    return {code, text("injected failure at call ", call)};
  }

  template <class Call>
  auto locked(Call&& call) const -> decltype(call()) {
    const std::lock_guard lock(memory_mutex_);
    return call();
  }
  template <class Call>
  auto failable(Code code, Call&& call) -> decltype(call()) {
    PENSTOCK_TRY(count(code));
    return locked(call);
  }

  Status check_host_room(const char* call, Bytes size) const {
    if (options_.host_capacity == 0) return {};
    const Bytes used = memory_->used(Place::kHost) + page_locked_.used();
    if (size <= options_.host_capacity - used) return {};
    return Status(Code::kHostOutOfMemory, call, ": ", size_text(size), " asked, ",
                  size_text(options_.host_capacity - used), " left of ",
                  size_text(options_.host_capacity), " of page-locked memory");
  }

  // Chunks push managed memory out, as they do on a GPU, but not one another.
  Status make_device_room(Bytes size) {
    const Bytes used = memory_->used(Place::kDevice);
    const Bytes room = options_.capacity - used;
    if (size > room) {
      return Status(Code::kOutOfMemory, "create_chunk: ", size_text(size), " asked, ",
                    size_text(room), " free of ", size_text(options_.capacity),
                    " on the emulated GPU");
    }
    managed_.evict_down_to(room - size);
    return {};
  }

  Bytes managed_room() const { return options_.capacity - memory_->used(Place::kDevice); }

  const HostDriverOptions options_;
  DeviceInfo info_;
  std::atomic<std::int64_t> calls_{0};  // that can fail
  mutable std::mutex memory_mutex_;     // guards the three below
  const std::unique_ptr<HostMemory> memory_;
  HostManaged managed_;
  HostPageLocked page_locked_;
  HostEvents events_;
  HostStreams streams_;  // last: destroyed first, when its work may still need all of the above
};

EmulatedGpu::EmulatedGpu(const HostDriverOptions& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      managed_(options.granularity),
      streams_(options.seed, options.max_delay_us, options.reuse_handles) {
  info_.name = "emulated GPU";
  info_.total = options.capacity;
  info_.granularity = options.granularity;
  info_.virtual_memory = true;
  info_.host_chunks = true;
  info_.managed = true;
  info_.concurrent_managed = true;
  info_.emulated = true;
}

}  // namespace

Result<std::unique_ptr<HostDriver>> open_host_driver(const HostDriverOptions& options) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  PENSTOCK_TRY(check_shape("emulated GPU", options.capacity, options.granularity, page));
  if (options.capacity == 0) return invalid("emulated GPU: capacity 0");
  PENSTOCK_ASSIGN(auto memory, HostMemory::open(options.granularity));
  return std::unique_ptr<HostDriver>(std::make_unique<EmulatedGpu>(options, std::move(memory)));
}

}  // namespace penstock::driver
