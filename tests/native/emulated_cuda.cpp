// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 over the emulated GPU, so that the CUDA driver and its conformance run where there
// is no card: every entry point of cuda_symbols.def, the strictness of the real one (a context must
// be current, versions are asked for explicitly), and no timing.  It tests our side of the calls;
// what NVIDIA's side does, only a card can say.  Thread rule: any thread.
#include "emulated_cuda.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "driver/cuda/abi.hpp"
#include "driver/emulated/driver.hpp"
#include "emulated_faults.hpp"
#include "emulated_kernels.hpp"
#include "emulated_members.hpp"

namespace penstock::driver::cuda {
namespace {

constexpr Error kDeinitialized{static_cast<Error>(4)};
constexpr Error kInvalidContext{static_cast<Error>(201)};
constexpr Error kAlreadyRegistered{static_cast<Error>(712)};
constexpr Error kNotRegistered{static_cast<Error>(713)};
constexpr Error kUnknown{static_cast<Error>(999)};

HostDriver& gpu() {
  // Never destroyed: work may still be in it when the process ends.
  static HostDriver* const driver =
      open_host_driver({.capacity = 2 * kGiB, .seed = 11, .max_delay_us = 100}).value().release();
  return *driver;
}

// Without a destructor, since a driver may still be closing when the thread's objects have gone.
struct ContextStack {
  ContextPtr contexts[16];
  int depth;
};
thread_local ContextStack stack_of_thread{};
thread_local int capture_mode_of_thread = 0;  // global, as in the real one

ContextPtr primary_context() {
  static int nothing;
  return reinterpret_cast<ContextPtr>(&nothing);
}

ContextPtr top_context() {
  const ContextStack& stack = stack_of_thread;
  return stack.depth == 0 ? nullptr : stack.contexts[stack.depth - 1];
}

void push_context(ContextPtr context) {
  stack_of_thread.contexts[stack_of_thread.depth++] = context;
}

EmulatedCuda& control() {
  static EmulatedCuda* const dials = [] {
    auto* made = new EmulatedCuda;
    made->current = [] { return static_cast<void*>(top_context()); };
    made->depth = [] { return stack_of_thread.depth; };
    made->capture_mode = [] { return capture_mode_of_thread; };
    made->push = [](void* context) { push_context(static_cast<ContextPtr>(context)); };
    made->pop = [] { --stack_of_thread.depth; };
    made->gpu = [] { return &gpu(); };
    return made;
  }();
  return *dials;
}

Error alive() { return control().shut_down ? kDeinitialized : kSuccess; }

Error in_context() {
  if (control().shut_down) return kDeinitialized;
  const bool current = control().contexts > 0 && top_context() == primary_context();
  return current ? kSuccess : kInvalidContext;
}

// A thread in the global mode may not call what a capture does not allow, whoever captures.
Error safe_in_captures() {
  if (capture_mode_of_thread == kCaptureModeRelaxed || gpu().captures() == 0) return in_context();
  gpu().break_captures();
  return kCaptureUnsupported;
}

Error error_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kSuccess;
    case Code::kInvalidArgument:
      return kInvalidValue;
    case Code::kOutOfMemory:
    case Code::kHostOutOfMemory:
      return kOutOfMemory;
    case Code::kNotReady:
      return kNotReady;
    case Code::kUnsupported:
      return kNotSupported;
    default:
      return kUnknown;
  }
}

template <class Value, class Out>
Error hand_over(Result<Value> result, Out* out) {
  if (result.ok()) *out = (Out)result.value();  // ids, addresses and pointers are one size
  return error_of(result.status());
}

Stream stream_of(StreamPtr stream) { return Stream{reinterpret_cast<std::uint64_t>(stream)}; }
Event event_of(EventPtr event) { return Event{reinterpret_cast<std::uint64_t>(event)}; }
Place place_of(Location at) { return at.type == kLocationDevice ? Place::kDevice : Place::kHost; }

#define DO_WHEN(state, call) \
  NEEDS(state);              \
  return (call)

#define NEEDS(state)                                                     \
  do {                                                                   \
    if (const Error error_ = (state); error_ != kSuccess) return error_; \
  } while (false)

// One function for each line of cuda_symbols.def, which checks its type below.
struct Calls {
  static Error cuInit(unsigned flags) {
    NEEDS(alive());
    return flags == 0 ? static_cast<Error>(control().init_error.load()) : kInvalidValue;
  }
  static Error cuDriverGetVersion(int* version) {
    *version = control().version;
    return kSuccess;
  }
  static Error cuGetErrorName(Error error, const char** name) {
    *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == kNotReady  ? "CUDA_ERROR_NOT_READY"
                                  : "CUDA_ERROR_OF_THE_EMULATION";
    return kSuccess;
  }
  static Error cuGetErrorString(Error, const char** meaning) {
    *meaning = "told by the emulation";
    return kSuccess;
  }

  static Error cuDeviceGet(Device* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < control().devices ? kSuccess : kInvalidValue;
  }
  static Error cuDeviceGetCount(int* count) {
    *count = control().devices;
    return alive();
  }
  static Error cuDeviceGetName(char* name, int length, Device) {
    std::strncpy(name, "emulated GPU behind libcuda", static_cast<std::size_t>(length) - 1);
    return kSuccess;
  }
  static Error cuDeviceGetAttribute(int* value, Attribute which, Device) {
    switch (which) {
      case kComputeCapabilityMajor:
        *value = 9;
        return kSuccess;
      case kComputeCapabilityMinor:
      case kGpuDirectRdmaWithVirtualMemory:
        *value = 0;
        return kSuccess;
      case kHostPointerForRegisteredMemory:
        *value = control().registers ? 1 : 0;
        return kSuccess;
      case kHostNumaId:
        *value = -1;  // no NUMA, as in a small virtual machine
        return kSuccess;
      case kManagedMemory:
      case kConcurrentManagedAccess:
      case kVirtualMemoryManagement:
      case kHostNumaVirtualMemoryManagement:
        *value = 1;
        return kSuccess;
    }
    return kInvalidValue;
  }
  static Error cuDeviceTotalMem(std::size_t* total, Device) {
    *total = gpu().info().total;
    return kSuccess;
  }
  static Error cuDeviceCanAccessPeer(int* can, Device, Device) {
    *can = control().reachable;
    return alive();
  }
  static Error cuDevicePrimaryCtxRetain(ContextPtr* context, Device) {
    NEEDS(alive());
    ++control().contexts;
    *context = primary_context();
    return kSuccess;
  }
  static Error cuDevicePrimaryCtxRelease(Device) {
    NEEDS(alive());
    --control().contexts;
    return kSuccess;
  }

  static Error cuCtxGetCurrent(ContextPtr* context) {
    *context = top_context();
    return alive();
  }
  static Error cuCtxPushCurrent(ContextPtr context) {
    NEEDS(alive());
    push_context(context);
    return kSuccess;
  }
  static Error cuCtxPopCurrent(ContextPtr* context) {
    if (stack_of_thread.depth == 0) return kInvalidContext;
    *context = top_context();
    --stack_of_thread.depth;
    return kSuccess;
  }
  static Error cuCtxSynchronize() {
    DO_WHEN(safe_in_captures(), error_of(gpu().synchronize_device()));
  }
  static Error cuThreadExchangeStreamCaptureMode(int* mode) {
    NEEDS(alive());
    std::swap(*mode, capture_mode_of_thread);
    return kSuccess;
  }
  static Error cuMemGetInfo(std::size_t* free, std::size_t* total) {
    NEEDS(in_context());
    const auto info = gpu().memory_info();
    *free = info.value().free;
    *total = info.value().total;
    return kSuccess;
  }
  static Error cuMemGetAllocationGranularity(std::size_t* granularity,
                                             const AllocationProperties* properties, int option) {
    NEEDS(in_context());
    NEEDS(check(*properties));
    if (option != kGranularityMinimum) return kInvalidValue;
    *granularity = gpu().info().granularity;
    return kSuccess;
  }
  static Error cuMemAddressReserve(DevicePtr* address, std::size_t size, std::size_t alignment,
                                   DevicePtr hint, unsigned long long flags) {
    NEEDS(in_context());
    if (alignment != gpu().info().granularity || hint != 0 || flags != 0) return kInvalidValue;
    return hand_over(gpu().reserve(size), address);
  }
  static Error cuMemAddressFree(DevicePtr address, std::size_t size) {
    DO_WHEN(in_context(), error_of(gpu().unreserve(address, size)));
  }
  static Error cuMemCreate(AllocationHandle* handle, std::size_t size,
                           const AllocationProperties* properties, unsigned long long flags) {
    NEEDS(in_context());
    NEEDS(check(*properties));
    if (flags != 0) return kInvalidValue;
    return hand_over(gpu().create_chunk(size, place_of(properties->location)), handle);
  }
  static Error cuMemRelease(AllocationHandle handle) {
    DO_WHEN(in_context(), error_of(gpu().release_chunk(Chunk{handle})));
  }
  static Error cuMemMap(DevicePtr address, std::size_t size, std::size_t offset,
                        AllocationHandle handle, unsigned long long flags) {
    NEEDS(in_context());
    if (offset != 0 || flags != 0) return kInvalidValue;
    if (control().stale) mapped_anew.add(address);
    return error_of(gpu().map(address, size, Chunk{handle}));
  }
  static Error cuMemUnmap(DevicePtr address, std::size_t size) {
    DO_WHEN(in_context(), error_of(gpu().unmap(address, size)));
  }
  static Error cuMemSetAccess(DevicePtr address, std::size_t size, const AccessDescriptor* access,
                              std::size_t count) {
    NEEDS(in_context());
    if (control().not_ready > 0) {
      --control().not_ready;
      return kNotReady;
    }
    bool expected = count > 0;
    for (std::size_t i = 0; i < count; ++i) {
      expected = expected && access[i].flags == kAccessReadWrite &&
                 access[i].location.type == kLocationDevice &&
                 access[i].location.id < control().devices;
    }
    if (expected && count == 2 && control().stale) expected = mapped_anew.has(address);
    if (expected && count == 2) control().shared += size;
    return expected ? error_of(gpu().set_access(address, size)) : kInvalidValue;
  }

  static Error cuMemHostAlloc(void** pointer, std::size_t size, unsigned flags) {
    NEEDS(safe_in_captures());
    if (flags != kHostAllocPortable) return kInvalidValue;
    return hand_over(gpu().host_alloc(size), pointer);
  }
  static Error cuMemFreeHost(void* pointer) {
    DO_WHEN(safe_in_captures(), error_of(gpu().host_free(pointer)));
  }
  static Error cuMemHostRegister(void* pointer, std::size_t size, unsigned flags) {
    NEEDS(safe_in_captures());
    if (pointer == nullptr || size == 0 || flags != kHostRegisterPortable) return kInvalidValue;
    if (!registered.add(pointer)) return kAlreadyRegistered;
    ++control().registered;
    return kSuccess;
  }
  static Error cuMemHostUnregister(void* pointer) {
    NEEDS(safe_in_captures());
    if (!registered.remove(pointer)) return kNotRegistered;
    --control().registered;
    return kSuccess;
  }
  static Error cuMemAllocManaged(DevicePtr* address, std::size_t size, unsigned flags) {
    NEEDS(safe_in_captures());
    if (flags != kAttachGlobal) return kInvalidValue;
    return hand_over(gpu().managed_alloc(size), address);
  }
  static Error cuMemAlloc(DevicePtr* address, std::size_t size) {
    NEEDS(in_context());
    // Work space of a driver that may outlive a test: not counted as the others are.
    *address = reinterpret_cast<DevicePtr>(std::calloc(size, 1));
    work_spaces.add(*address);
    return kSuccess;
  }
  static Error cuMemFree(DevicePtr address) {
    NEEDS(safe_in_captures());
    if (work_spaces.remove(address)) {
      std::free(reinterpret_cast<void*>(address));
      return kSuccess;
    }
    return error_of(gpu().managed_free(address));
  }
  static Error cuMemAdvise(DevicePtr address, std::size_t size, Advice advice, Location location) {
    NEEDS(in_context());
    control().advice = advice;
    control().advice_location = location.type;
    const bool device = place_of(location) == Place::kDevice;
    switch (advice) {
      case kSetReadMostly:
        return error_of(gpu().managed_advise(address, size, driver::Advice::kReadMostly));
      case kUnsetReadMostly:
        return error_of(gpu().managed_advise(address, size, driver::Advice::kUnsetReadMostly));
      case kSetPreferredLocation:
        return error_of(gpu().managed_advise(
            address, size, device ? driver::Advice::kPreferDevice : driver::Advice::kPreferHost));
      case kUnsetPreferredLocation:
        return error_of(gpu().managed_advise(address, size, driver::Advice::kUnsetPreferred));
      case kSetAccessedBy:
        return device ? error_of(gpu().managed_advise(address, size, driver::Advice::kMapOnDevice))
                      : kInvalidValue;
    }
    return kInvalidValue;
  }
  static Error cuMemPrefetchAsync(DevicePtr address, std::size_t size, Location location,
                                  unsigned flags, StreamPtr stream) {
    DO_WHEN(flags == 0 ? in_context() : kInvalidValue,
            error_of(gpu().managed_prefetch(address, size, place_of(location), stream_of(stream))));
  }

  static Error cuMemcpyHtoDAsync(DevicePtr to, const void* from, std::size_t size,
                                 StreamPtr stream) {
    DO_WHEN(in_context(), error_of(gpu().copy_in(to, from, size, stream_of(stream))));
  }
  static Error cuMemcpyDtoHAsync(void* to, DevicePtr from, std::size_t size, StreamPtr stream) {
    DO_WHEN(in_context(), error_of(gpu().copy_out(to, from, size, stream_of(stream))));
  }
  static Error cuMemcpyDtoDAsync(DevicePtr to, DevicePtr from, std::size_t size, StreamPtr stream) {
    NEEDS(in_context());
    return error_of(gpu().launch(stream_of(stream), [=] {  // overlapping or not
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
    }));
  }
  static Error cuMemsetD8Async(DevicePtr to, unsigned char value, std::size_t size,
                               StreamPtr stream) {
    DO_WHEN(in_context(), error_of(gpu().fill(to, value, size, stream_of(stream))));
  }

  static Error cuModuleLoadData(ModulePtr* module, const void* image) {
    NEEDS(in_context());
    if (std::strncmp(static_cast<const char*>(image), "\n.version", 9) != 0) return kInvalidValue;
    static int nothing;
    *module = reinterpret_cast<ModulePtr>(&nothing);
    return kSuccess;
  }
  static Error cuModuleUnload(ModulePtr) { return in_context(); }
  static Error cuModuleGetFunction(FunctionPtr* function, ModulePtr, const char* name) {
    NEEDS(in_context());
    *function = find_kernel(name);
    return *function != nullptr ? kSuccess : kInvalidValue;
  }
  static Error cuLaunchKernel(FunctionPtr function, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, unsigned, StreamPtr stream, void** parameters,
                              void**) {
    DO_WHEN(in_context(), error_of(launch_kernel(gpu(), function, stream_of(stream), parameters)));
  }
  static inline Members<DevicePtr> mapped_anew;  // since `stale`
  static inline Members<DevicePtr> work_spaces;
  static inline Members<void*> registered;

  static Error cuStreamCreate(StreamPtr* stream, unsigned flags) {
    DO_WHEN(flags == kStreamNonBlocking ? in_context() : kInvalidValue,
            hand_over(gpu().create_stream(), stream));
  }
  static Error cuStreamDestroy(StreamPtr stream) {
    DO_WHEN(in_context(), error_of(gpu().destroy_stream(stream_of(stream))));
  }
  static Error cuStreamSynchronize(StreamPtr stream) {
    DO_WHEN(safe_in_captures(), error_of(gpu().synchronize(stream_of(stream))));
  }
  static Error cuStreamIsCapturing(StreamPtr stream, int* status) {
    NEEDS(in_context());
    const auto capturing = gpu().capturing(stream_of(stream));
    *status = capturing.ok() && capturing.value() ? 1 : 0;
    return error_of(capturing.status());
  }
  static Error cuStreamWaitEvent(StreamPtr stream, EventPtr event, unsigned flags) {
    DO_WHEN(flags == 0 ? in_context() : kInvalidValue,
            error_of(gpu().wait(stream_of(stream), event_of(event))));
  }
  static Error cuEventCreate(EventPtr* event, unsigned flags) {
    NEEDS(in_context());
    if (flags != kEventDefault && flags != kEventDisableTiming) return kInvalidValue;
    return hand_over(gpu().create_event(flags == kEventDefault), event);
  }
  static Error cuEventDestroy(EventPtr event) {
    DO_WHEN(in_context(), error_of(gpu().destroy_event(event_of(event))));
  }
  static Error cuEventRecord(EventPtr event, StreamPtr stream) {
    DO_WHEN(in_context(), error_of(gpu().record(event_of(event), stream_of(stream))));
  }
  static Error cuEventQuery(EventPtr event) {
    DO_WHEN(safe_in_captures(), error_of(gpu().query(event_of(event))));
  }
  static Error cuEventSynchronize(EventPtr event) {
    DO_WHEN(safe_in_captures(), error_of(gpu().synchronize(event_of(event))));
  }
  static Error cuEventElapsedTime(float* milliseconds, EventPtr from, EventPtr to) {
    NEEDS(in_context());
    const Error error = hand_over(gpu().elapsed_ms(event_of(from), event_of(to)), milliseconds);
    return error == kInvalidValue ? kInvalidHandle : error;
  }

 private:
  static Error check(const AllocationProperties& properties) {
    const bool device = properties.location.type == kLocationDevice;
    const bool host = properties.location.type == kLocationHostNuma;
    const bool expected = properties.type == kAllocationPinned && (device || host) &&
                          properties.location.id < control().devices &&
                          properties.requested_handle_types == 0 &&
                          properties.win32_metadata == nullptr;
    return expected ? kSuccess : kInvalidValue;
  }
};

// A function that may be made to fail before it does anything.
template <auto function, bool asks>
struct Failing;
template <class... Parameters, Error (*function)(Parameters...), bool asks>
struct Failing<function, asks> {
  static Error call(Parameters... parameters) {
    const Question question{reinterpret_cast<const void*>(function), about(parameters...)};
    return fails(control(), asks, question) ? kUnknown : function(parameters...);
  }
};

struct EntryPoint {
  const char* name;
  int version;
  void* function;
};

const EntryPoint kEntryPoints[] = {
#define PENSTOCK_CUDA(name, suffix, version, parameters) \
  {#name, version,                                       \
   reinterpret_cast<void*>(                              \
       &Failing<static_cast<Error(*) parameters>(&Calls::name), asks(#name)>::call)},
#include "driver/cuda/symbols.def"
#undef PENSTOCK_CUDA
};

}  // namespace
}  // namespace penstock::driver::cuda

extern "C" {

penstock::driver::cuda::EmulatedCuda* penstock_emulated_cuda() {
  return &penstock::driver::cuda::control();
}

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function,
                                                               int version, std::uint64_t flags,
                                                               int* status) {
  using namespace penstock::driver::cuda;
  *function = nullptr;
  *status = 1;  // not found
  if (flags != kProcAddressLegacyStream || version > control().version) return kInvalidValue;
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(entry.name, symbol) != 0) continue;
    *status = version >= entry.version ? 0 : 2;  // found, or in a later version only
    if (*status == 0) *function = entry.function;
  }
  return kSuccess;
}

}  // extern "C"
