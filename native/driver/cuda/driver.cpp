// SPDX-License-Identifier: Apache-2.0
// The driver contract on a CUDA device.  A Stream is the CUstream itself, so that a framework's
// streams can be recorded in and waited for; only our own can be destroyed.  Invariant: whatever
// this object made is counted, and gone when it goes.  Thread rule: any thread.
#include "driver/driver.hpp"

#include <memory>

#include "driver/cuda/device.hpp"
#include "driver/cuda/handles.hpp"
#include "driver/cuda/host_memory.hpp"
#include "driver/cuda/kernels.hpp"
#include "driver/cuda/memory.hpp"
#include "driver/text.hpp"

namespace penstock::driver {
namespace cuda {
namespace {

StreamPtr native(Stream stream) { return reinterpret_cast<StreamPtr>(stream); }
EventPtr native(Event event) { return reinterpret_cast<EventPtr>(event); }
std::uint64_t key(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

class CudaDriver final : public CudaMemory {
 public:
  explicit CudaDriver(std::unique_ptr<CudaDevice> device)
      : CudaMemory(*device), owned_(std::move(device)), kernels_(device_) {}

  // At process exit libcuda may be down already and answers DEINITIALIZED or CONTEXT_IS_DESTROYED
  // to everything; in a forked child it must not be called at all.  Either way nothing is left to
  // do.
  ~CudaDriver() override {
    if (!device_.owned_here()) return;
    const CudaScope scope(device_);
    const LiveCounts counts = live();
    for (const auto stream : streams_.take_all()) {
      symbols_.cuStreamSynchronize(native(Stream{stream}));
      symbols_.cuStreamDestroy(native(Stream{stream}));
    }
    for (const auto event : events_.take_all()) symbols_.cuEventDestroy(native(Event{event}));
    kernels_.give_everything_back();
    if (counts.mappings > 0) symbols_.cuCtxSynchronize();
    give_everything_back();
    page_locked_.give_everything_back();
    for (const auto address : managed_.take_all()) symbols_.cuMemFree(address);
  }

  const DeviceInfo& info() const override { return device_.info(); }

  LiveCounts live() const override {
    LiveCounts counts;
    count_live(counts);
    counts.host_allocations = page_locked_.size();
    counts.managed_allocations = managed_.size();
    counts.streams = streams_.size();
    counts.events = events_.size();
    return counts;
  }

  Result<MemoryInfo> memory_info() override {
    std::size_t free = 0;
    std::size_t total = 0;
    PENSTOCK_TRY(call(symbols_.cuMemGetInfo, {}, &free, &total));
    return MemoryInfo{.free = free, .total = total};
  }

  Status share_with(int ordinal) override {
    PENSTOCK_ASSIGN(const Device peer, device_.find_peer(ordinal));
    return share_with_peer(peer);
  }

  Result<void*> host_alloc(Bytes size) override { return page_locked_.allocate(size); }

  Status host_free(void* pointer) override { return page_locked_.free(pointer); }

  Result<Addr> managed_alloc(Bytes size) override {
    if (size == 0) return invalid("managed_alloc: size 0");
    if (!info().managed) {
      return Status(Code::kUnsupported, "managed_alloc: ", info().name, " has no managed memory");
    }
    DevicePtr address = 0;
    PENSTOCK_TRY(call(symbols_.cuMemAllocManaged, {size}, &address, size, kAttachGlobal));
    managed_.add(address, size);
    return address;
  }

  Status managed_free(Addr address) override {
    PENSTOCK_TRY(managed_.remove("managed_free", address));
    return call(symbols_.cuMemFree, {}, address);
  }

  Status managed_advise(Addr address, Bytes size, driver::Advice advice) override {
    PENSTOCK_TRY(check_managed("managed_advise", address, size));
    // In the order of driver::Advice.
    static constexpr cuda::Advice kNative[] = {kSetReadMostly,          kUnsetReadMostly,
                                               kSetPreferredLocation,   kSetPreferredLocation,
                                               kUnsetPreferredLocation, kSetAccessedBy};
    const bool host = advice == driver::Advice::kPreferHost;
    const Location location = host ? Location{kLocationHost, 0} : device_.device_location();
    const cuda::Advice native_advice = kNative[static_cast<std::size_t>(advice)];
    return call(symbols_.cuMemAdvise, {size}, address, size, native_advice, location);
  }

  Status managed_prefetch(Addr address, Bytes size, Place to, Stream stream) override {
    PENSTOCK_TRY(check_managed("managed_prefetch", address, size));
    const Location location =
        to == Place::kDevice ? device_.device_location() : Location{kLocationHost, 0};
    return call(symbols_.cuMemPrefetchAsync, {size}, address, size, location, 0u, native(stream));
  }

  Result<Stream> create_stream() override {
    StreamPtr stream = nullptr;
    PENSTOCK_TRY(call(symbols_.cuStreamCreate, {}, &stream, kStreamNonBlocking));
    streams_.add(key(stream));
    return Stream{key(stream)};
  }

  Status destroy_stream(Stream stream) override {
    PENSTOCK_TRY(streams_.remove("destroy_stream", static_cast<std::uint64_t>(stream)));
    return call(symbols_.cuStreamDestroy, {}, native(stream));
  }

  Status synchronize(Stream stream) override {
    return call(symbols_.cuStreamSynchronize, {}, native(stream));
  }

  Status synchronize_device() override { return call(symbols_.cuCtxSynchronize, {}); }

  Result<bool> capturing(Stream stream) override {
    const CudaScope scope(device_);
    int status = 0;  // of three values: no, yes, and in a capture that was invalidated
    const Error error = symbols_.cuStreamIsCapturing(native(stream), &status);
    if (error == kCaptureImplicit) return true;
    PENSTOCK_TRY(device_.check(error, "cuStreamIsCapturing"));
    return status != 0;
  }

  Result<Event> create_event(bool timing) override {
    EventPtr event = nullptr;
    PENSTOCK_TRY(
        call(symbols_.cuEventCreate, {}, &event, timing ? kEventDefault : kEventDisableTiming));
    events_.add(key(event));
    return Event{key(event)};
  }

  Status destroy_event(Event event) override {
    PENSTOCK_TRY(events_.remove("destroy_event", static_cast<std::uint64_t>(event)));
    return call(symbols_.cuEventDestroy, {}, native(event));
  }

  Status record(Event event, Stream stream) override {
    return call(symbols_.cuEventRecord, {}, native(event), native(stream));
  }

  Status wait(Stream stream, Event event) override {
    return call(symbols_.cuStreamWaitEvent, {}, native(stream), native(event), 0u);
  }

  Status query(Event event) override {
    const CudaScope scope(device_);
    const Error error = symbols_.cuEventQuery(native(event));
    if (error == kNotReady) return {Code::kNotReady, "event not complete"};
    return device_.check(error, "cuEventQuery");
  }

  Status synchronize(Event event) override {
    return call(symbols_.cuEventSynchronize, {}, native(event));
  }

  Result<float> elapsed_ms(Event from, Event to) override {
    float milliseconds = 0;
    PENSTOCK_TRY(call(symbols_.cuEventElapsedTime, {}, &milliseconds, native(from), native(to)));
    return milliseconds;
  }

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override {
    if (size == 0) return {};
    return call(symbols_.cuMemcpyHtoDAsync, {size}, to, from, size, native(stream));
  }

  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override {
    if (size == 0) return {};
    return call(symbols_.cuMemcpyDtoHAsync, {size}, to, from, size, native(stream));
  }

  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint, bool still,
                          Stream stream) override {
    PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
    if (size == 0) return {};
    return kernels_.copy_out_changed(to, from, size, fingerprint, still, native(stream));
  }

  Status survey(Addr counts, Addr raw, Bytes size, Stream stream) override {
    PENSTOCK_TRY(check_codes("survey", {counts, sizeof(codec::Counts)}, {raw, size}));
    return size == 0 ? Status{} : kernels_.survey(counts, raw, size, native(stream));
  }

  // A code of nothing has no tile that a kernel could begin at.
  Status encode(Addr to, Addr from, const codec::Survey& survey, Stream stream) override {
    const codec::Shape& shape = survey.shape;
    PENSTOCK_TRY(check_codes("encode", {to, shape.size()}, {from, shape.raw_bytes}));
    if (shape.raw_bytes == 0) return invalid("encode: of nothing");
    return kernels_.encode(to, from, survey, native(stream));
  }

  Status decode(Addr to, Addr from, const codec::Shape& shape, Stream stream) override {
    PENSTOCK_TRY(check_codes("decode", {to, shape.raw_bytes}, {from, shape.size()}));
    return shape.raw_bytes == 0 ? Status{} : kernels_.decode(to, from, shape, native(stream));
  }

  Status copy_within(Addr to, Addr from, Bytes size, Stream stream) override {
    PENSTOCK_TRY(check_apart({to, size}, {from, size}));
    if (size == 0) return {};
    return call(symbols_.cuMemcpyDtoDAsync, {size}, to, from, size, native(stream));
  }

  Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) override {
    if (size == 0) return {};
    return call(symbols_.cuMemsetD8Async, {size}, to, value, size, native(stream));
  }

 private:
  Status check_managed(const char* name, Addr address, Bytes size) const {
    if (!managed_.contains_span(address, size)) {
      return invalid(name, ": ", span_text(address, size), " is not inside one managed allocation");
    }
    if (info().concurrent_managed) return {};
    return Status(Code::kUnsupported, name, ": ", info().name,
                  " cannot move managed memory on demand here (concurrent managed access is 0, as "
                  "on Windows, WSL and Tegra)");
  }

  const std::unique_ptr<CudaDevice> owned_;
  CudaKernels kernels_;
  HostMemory page_locked_{device_};
  CudaHandles managed_;
  CudaHandles streams_;
  CudaHandles events_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Driver>> open_cuda_driver(int ordinal) {
  PENSTOCK_ASSIGN(auto device, cuda::CudaDevice::open(ordinal));
  return std::unique_ptr<Driver>(std::make_unique<cuda::CudaDriver>(std::move(device)));
}

}  // namespace penstock::driver
