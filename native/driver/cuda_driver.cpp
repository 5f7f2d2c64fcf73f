// SPDX-License-Identifier: Apache-2.0
// The driver contract on a CUDA device.  A Stream is the CUstream itself, so that a framework's
// streams can be recorded in and waited for; only our own can be destroyed.  Invariant: whatever
// this object made is counted, and gone when it goes.  Thread rule: any thread.
#include <memory>

#include "driver/cuda_device.hpp"
#include "driver/cuda_handles.hpp"
#include "driver/cuda_kernels.hpp"
#include "driver/cuda_memory.hpp"
#include "driver/driver.hpp"
#include "driver/text.hpp"

namespace penstock::driver {
namespace cuda {
namespace {

StreamPtr native(Stream stream) { return reinterpret_cast<StreamPtr>(stream); }
EventPtr native(Event event) { return reinterpret_cast<EventPtr>(event); }
std::uint64_t key(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(std::unique_ptr<CudaDevice> device)
      : device_(std::move(device)),
        symbols_(device_->symbols()),
        memory_(*device_),
        kernels_(*device_) {}
  ~CudaDriver() override;

  const DeviceInfo& info() const override { return device_->info(); }
  LiveCounts live() const override;
  Result<MemoryInfo> memory_info() override;

  Result<Addr> reserve(Bytes size) override { return memory_.reserve(size); }
  Status unreserve(Addr address, Bytes size) override { return memory_.unreserve(address, size); }
  Result<Chunk> create_chunk(Bytes size, Place place) override {
    return memory_.create_chunk(size, place);
  }
  Status release_chunk(Chunk chunk) override { return memory_.release_chunk(chunk); }
  Status map(Addr address, Bytes size, Chunk chunk) override {
    return memory_.map(address, size, chunk);
  }
  Status unmap(Addr address, Bytes size) override { return memory_.unmap(address, size); }
  Status set_access(Addr address, Bytes size) override { return memory_.set_access(address, size); }
  Status share_with(int ordinal) override;

  Result<void*> host_alloc(Bytes size) override;
  Status host_free(void* pointer) override;

  Result<Addr> managed_alloc(Bytes size) override;
  Status managed_free(Addr address) override;
  Status managed_advise(Addr address, Bytes size, driver::Advice advice) override;
  Status managed_prefetch(Addr address, Bytes size, Place to, Stream stream) override;

  Result<Stream> create_stream() override;
  Status destroy_stream(Stream stream) override;
  Status synchronize(Stream stream) override;
  Status synchronize_device() override {
    return call("cuCtxSynchronize", 0, symbols_.context_synchronize);
  }

  Result<Event> create_event(bool timing) override;
  Status destroy_event(Event event) override;
  Status record(Event event, Stream stream) override;
  Status wait(Stream stream, Event event) override;
  Status query(Event event) override;
  Status synchronize(Event event) override;
  Result<float> elapsed_ms(Event from, Event to) override;

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override;
  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override;
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                          Stream stream) override;
  Status copy_within(Addr to, Addr from, Bytes size, Stream stream) override;
  Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) override;

 private:
  Status check_managed(const char* call, Addr address, Bytes size) const;

  // One call in the device's context, its failure in words.
  template <class Function, class... Arguments>
  Status call(const char* name, Bytes size, Function function, Arguments... arguments) const {
    const CudaScope scope(*device_);
    return device_->check(function(arguments...), name, size);
  }

  const std::unique_ptr<CudaDevice> device_;
  const Symbols& symbols_;
  CudaMemory memory_;
  CudaKernels kernels_;
  CudaHandles page_locked_;
  CudaHandles managed_;
  CudaHandles streams_;
  CudaHandles events_;
};

// At process exit libcuda may be down already and answers DEINITIALIZED or CONTEXT_IS_DESTROYED to
// everything; in a forked child it must not be called at all.  Either way nothing is left to do.
CudaDriver::~CudaDriver() {
  if (!device_->owned_here()) return;
  const CudaScope scope(*device_);
  const LiveCounts counts = live();
  for (const auto stream : streams_.take_all()) {
    symbols_.stream_synchronize(native(Stream{stream}));
    symbols_.stream_destroy(native(Stream{stream}));
  }
  for (const auto event : events_.take_all()) symbols_.event_destroy(native(Event{event}));
  kernels_.give_everything_back();
  if (counts.mappings > 0) symbols_.context_synchronize();
  memory_.give_everything_back();
  for (const auto pointer : page_locked_.take_all()) {
    symbols_.mem_free_host(reinterpret_cast<void*>(pointer));
  }
  for (const auto address : managed_.take_all()) symbols_.mem_free(address);
}

Status CudaDriver::share_with(int ordinal) {
  PENSTOCK_ASSIGN(const Device peer, device_->find_peer(ordinal));
  return memory_.share_with(peer);
}

LiveCounts CudaDriver::live() const {
  LiveCounts counts;
  memory_.count_live(counts);
  counts.host_allocations = page_locked_.size();
  counts.managed_allocations = managed_.size();
  counts.streams = streams_.size();
  counts.events = events_.size();
  return counts;
}

Result<MemoryInfo> CudaDriver::memory_info() {
  std::size_t free = 0;
  std::size_t total = 0;
  PENSTOCK_TRY(call("cuMemGetInfo", 0, symbols_.mem_get_info, &free, &total));
  return MemoryInfo{.free = free, .total = total};
}

Result<void*> CudaDriver::host_alloc(Bytes size) {
  if (size == 0) return Status(Code::kInvalidArgument, "host_alloc: size 0");
  const CudaScope scope(*device_);
  void* pointer = nullptr;
  PENSTOCK_TRY(device_->check(symbols_.mem_host_alloc(&pointer, size, kHostAllocPortable),
                              "cuMemHostAlloc", size, Place::kHost));
  page_locked_.add(key(pointer), size);
  return pointer;
}

Status CudaDriver::host_free(void* pointer) {
  if (!page_locked_.remove(key(pointer))) {
    return {Code::kInvalidArgument,
            text("host_free: ", pointer, " is not the start of an allocation")};
  }
  return call("cuMemFreeHost", 0, symbols_.mem_free_host, pointer);
}

Result<Addr> CudaDriver::managed_alloc(Bytes size) {
  if (size == 0) return Status(Code::kInvalidArgument, "managed_alloc: size 0");
  if (!info().managed) {
    return Status(Code::kUnsupported,
                  text("managed_alloc: ", info().name, " has no managed memory"));
  }
  DevicePtr address = 0;
  PENSTOCK_TRY(
      call("cuMemAllocManaged", size, symbols_.mem_alloc_managed, &address, size, kAttachGlobal));
  managed_.add(address, size);
  return address;
}

Status CudaDriver::managed_free(Addr address) {
  if (!managed_.remove(address)) {
    return {Code::kInvalidArgument,
            text("managed_free: ", address_text(address), " is not the start of an allocation")};
  }
  return call("cuMemFree", 0, symbols_.mem_free, address);
}

Status CudaDriver::check_managed(const char* name, Addr address, Bytes size) const {
  if (!managed_.contains_span(address, size)) {
    return {Code::kInvalidArgument,
            text(name, ": ", span_text(address, size), " is not inside one managed allocation")};
  }
  if (info().concurrent_managed) return {};
  return {Code::kUnsupported, text(name, ": ", info().name,
                                   " cannot move managed memory on demand here (concurrent managed "
                                   "access is 0, as on Windows, WSL and Tegra)")};
}

Status CudaDriver::managed_advise(Addr address, Bytes size, driver::Advice advice) {
  PENSTOCK_TRY(check_managed("managed_advise", address, size));
  Location location = device_->device_location();
  cuda::Advice native_advice = kSetReadMostly;
  switch (advice) {
    case driver::Advice::kReadMostly:
      break;
    case driver::Advice::kUnsetReadMostly:
      native_advice = kUnsetReadMostly;
      break;
    case driver::Advice::kPreferDevice:
      native_advice = kSetPreferredLocation;
      break;
    case driver::Advice::kPreferHost:
      native_advice = kSetPreferredLocation;
      location = {kLocationHost, 0};
      break;
    case driver::Advice::kUnsetPreferred:
      native_advice = kUnsetPreferredLocation;
      break;
    case driver::Advice::kMapOnDevice:
      native_advice = kSetAccessedBy;
      break;
  }
  return call("cuMemAdvise", size, symbols_.mem_advise, address, size, native_advice, location);
}

Status CudaDriver::managed_prefetch(Addr address, Bytes size, Place to, Stream stream) {
  PENSTOCK_TRY(check_managed("managed_prefetch", address, size));
  const Location location =
      to == Place::kDevice ? device_->device_location() : Location{kLocationHost, 0};
  return call("cuMemPrefetchAsync", size, symbols_.mem_prefetch_async, address, size, location, 0u,
              native(stream));
}

Result<Stream> CudaDriver::create_stream() {
  StreamPtr stream = nullptr;
  PENSTOCK_TRY(call("cuStreamCreate", 0, symbols_.stream_create, &stream, kStreamNonBlocking));
  streams_.add(key(stream));
  return Stream{key(stream)};
}

Status CudaDriver::destroy_stream(Stream stream) {
  if (!streams_.remove(static_cast<std::uint64_t>(stream))) {
    return {Code::kInvalidArgument, "destroy_stream: not a stream of this driver"};
  }
  return call("cuStreamDestroy", 0, symbols_.stream_destroy, native(stream));
}

Status CudaDriver::synchronize(Stream stream) {
  return call("cuStreamSynchronize", 0, symbols_.stream_synchronize, native(stream));
}

Result<Event> CudaDriver::create_event(bool timing) {
  EventPtr event = nullptr;
  PENSTOCK_TRY(call("cuEventCreate", 0, symbols_.event_create, &event,
                    timing ? kEventDefault : kEventDisableTiming));
  events_.add(key(event));
  return Event{key(event)};
}

Status CudaDriver::destroy_event(Event event) {
  if (!events_.remove(static_cast<std::uint64_t>(event))) {
    return {Code::kInvalidArgument, "destroy_event: not an event of this driver"};
  }
  return call("cuEventDestroy", 0, symbols_.event_destroy, native(event));
}

Status CudaDriver::record(Event event, Stream stream) {
  return call("cuEventRecord", 0, symbols_.event_record, native(event), native(stream));
}

Status CudaDriver::wait(Stream stream, Event event) {
  return call("cuStreamWaitEvent", 0, symbols_.stream_wait_event, native(stream), native(event),
              0u);
}

Status CudaDriver::query(Event event) {
  const CudaScope scope(*device_);
  const Error error = symbols_.event_query(native(event));
  if (error == kNotReady) return {Code::kNotReady, "event not complete"};
  return device_->check(error, "cuEventQuery");
}

Status CudaDriver::synchronize(Event event) {
  return call("cuEventSynchronize", 0, symbols_.event_synchronize, native(event));
}

Result<float> CudaDriver::elapsed_ms(Event from, Event to) {
  float milliseconds = 0;
  PENSTOCK_TRY(call("cuEventElapsedTime", 0, symbols_.event_elapsed_time, &milliseconds,
                    native(from), native(to)));
  return milliseconds;
}

Status CudaDriver::copy_in(Addr to, const void* from, Bytes size, Stream stream) {
  if (size == 0) return {};
  return call("cuMemcpyHtoDAsync", size, symbols_.memcpy_htod_async, to, from, size,
              native(stream));
}

Status CudaDriver::copy_out(void* to, Addr from, Bytes size, Stream stream) {
  if (size == 0) return {};
  return call("cuMemcpyDtoHAsync", size, symbols_.memcpy_dtoh_async, to, from, size,
              native(stream));
}

Status CudaDriver::copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                    Stream stream) {
  PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
  if (size == 0) return {};
  return kernels_.copy_if_changed(to, from, size, fingerprint, native(stream));
}

Status CudaDriver::copy_within(Addr to, Addr from, Bytes size, Stream stream) {
  PENSTOCK_TRY(check_apart(to, from, size));
  if (size == 0) return {};
  return call("cuMemcpyDtoDAsync", size, symbols_.memcpy_dtod_async, to, from, size,
              native(stream));
}

Status CudaDriver::fill(Addr to, std::uint8_t value, Bytes size, Stream stream) {
  if (size == 0) return {};
  return call("cuMemsetD8Async", size, symbols_.memset_d8_async, to, value, size, native(stream));
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Driver>> open_cuda_driver(int ordinal) {
  PENSTOCK_ASSIGN(auto device, cuda::CudaDevice::open(ordinal));
  return std::unique_ptr<Driver>(std::make_unique<cuda::CudaDriver>(std::move(device)));
}

}  // namespace penstock::driver
