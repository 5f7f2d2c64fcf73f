// SPDX-License-Identifier: Apache-2.0
#include "driver/cuda/device.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

namespace penstock::driver::cuda {
namespace {

Code code_of(Error error, Place place) {
  switch (error) {
    case kOutOfMemory:
      return place == Place::kDevice ? Code::kOutOfMemory : Code::kHostOutOfMemory;
    case kInvalidValue:
    case kInvalidHandle:
      return Code::kInvalidArgument;
    case kNotReady:
      return Code::kNotReady;
    case kNotSupported:
      return Code::kUnsupported;
    case kNoDevice:
      return Code::kNoDevice;
    default:
      return Code::kDriver;
  }
}

Status start(const Symbols& symbols) {
  const Error error = symbols.cuInit(0);
  if (error == kSuccess) return {};
  if (error == kNoDevice) {
    return {Code::kNoDevice,
            "the NVIDIA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"};
  }
  if (error == kStubLibrary) {
    return {Code::kNoDevice,
            "libcuda.so.1 is the toolkit's stub: put the driver's own library first in the path"};
  }
  const char* name = nullptr;
  symbols.cuGetErrorName(error, &name);
  return Status(Code::kNoDevice, "cuInit failed with ", name != nullptr ? name : "an error", " (",
                static_cast<int>(error), "): check that nvidia-smi works");
}

}  // namespace

CudaDevice::CudaDevice(const Symbols& symbols, Device device)
    : symbols_(symbols), device_(device), owner_(getpid()) {}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  PENSTOCK_ASSIGN(const Symbols symbols, load_symbols());
  PENSTOCK_TRY(start(symbols));
  int count = 0;
  if (symbols.cuDeviceGetCount(&count) != kSuccess) count = 0;
  Device device = 0;
  if (ordinal < 0 || ordinal >= count || symbols.cuDeviceGet(&device, ordinal) != kSuccess) {
    return Status(Code::kNoDevice, "no CUDA device ", ordinal, ": ", count,
                  count == 1 ? " is" : " are", " visible");
  }
  std::unique_ptr<CudaDevice> opened(new CudaDevice(symbols, device));
  ContextPtr context = nullptr;
  PENSTOCK_TRY(opened->check(symbols.cuDevicePrimaryCtxRetain(&context, device),
                             "cuDevicePrimaryCtxRetain"));
  opened->context_ = context;
  PENSTOCK_TRY(opened->fill_info(ordinal));
  return opened;
}

// At process exit the driver may have gone already; what it answers then does not matter.
CudaDevice::~CudaDevice() {
  if (context_ != nullptr && owned_here()) symbols_.cuDevicePrimaryCtxRelease(device_);
}

bool CudaDevice::owned_here() const { return getpid() == owner_; }

int CudaDevice::attribute(Attribute which) const {
  int value = 0;
  return symbols_.cuDeviceGetAttribute(&value, which, device_) == kSuccess ? value : 0;
}

Status CudaDevice::fill_info(int ordinal) {
  std::array<char, 256> name{};
  PENSTOCK_TRY(call(symbols_.cuDeviceGetName, {}, name.data(), name.size() - 1, device_));
  std::size_t total = 0;
  PENSTOCK_TRY(call(symbols_.cuDeviceTotalMem, {}, &total, device_));
  PENSTOCK_TRY(call(symbols_.cuDriverGetVersion, {}, &info_.driver_version));
  info_.name = name.data();
  info_.ordinal = ordinal;
  info_.total = total;
  info_.compute_capability =
      10 * attribute(kComputeCapabilityMajor) + attribute(kComputeCapabilityMinor);
  info_.virtual_memory = attribute(kVirtualMemoryManagement) != 0;
  info_.host_chunks = info_.virtual_memory && attribute(kHostNumaVirtualMemoryManagement) != 0;
  info_.managed = attribute(kManagedMemory) != 0;
  info_.concurrent_managed = attribute(kConcurrentManagedAccess) != 0;
  registers_host_memory_ = attribute(kHostPointerForRegisteredMemory) != 0;
  rdma_ = attribute(kGpuDirectRdmaWithVirtualMemory) != 0;
  host_numa_ = attribute(kHostNumaId);
  info_.granularity = 2 * kMiB;
  return info_.virtual_memory ? fill_granularity() : Status{};
}

// One granularity serves device and host chunks, since either may back a range.
Status CudaDevice::fill_granularity() {
  std::size_t granularity = 0;
  const AllocationProperties device = properties(Place::kDevice);
  PENSTOCK_TRY(
      call(symbols_.cuMemGetAllocationGranularity, {}, &granularity, &device, kGranularityMinimum));
  info_.granularity = granularity;
  if (!info_.host_chunks) return {};
  const AllocationProperties host = properties(Place::kHost);
  const Status possible =
      call(symbols_.cuMemGetAllocationGranularity, {}, &granularity, &host, kGranularityMinimum);
  info_.host_chunks = possible.ok();
  if (!info_.host_chunks) return {};
  info_.granularity = std::max<Bytes>(info_.granularity, granularity);
  return {};
}

Result<Device> CudaDevice::find_peer(int ordinal) const {
  Device peer = 0;
  PENSTOCK_TRY(call(symbols_.cuDeviceGet, {}, &peer, ordinal));
  int reaches = 0;
  PENSTOCK_TRY(call(symbols_.cuDeviceCanAccessPeer, {}, &reaches, peer, device_));
  if (reaches != 0) return peer;
  return Status(Code::kUnsupported, "device ", ordinal, " cannot reach the memory of device ",
                info_.ordinal, " (", info_.name, ")");
}

AllocationProperties CudaDevice::properties(Place place) const {
  AllocationProperties properties{};
  properties.type = kAllocationPinned;
  if (place == Place::kHost) {
    properties.location = {kLocationHostNuma, std::max(0, host_numa_)};
  } else {
    properties.location = device_location();
    properties.flags.gpu_direct_rdma_capable = rdma_ ? 1 : 0;
  }
  return properties;
}

std::string CudaDevice::error_name(Error error) const {
  const char* name = nullptr;
  if (symbols_.cuGetErrorName(error, &name) != kSuccess || name == nullptr) {
    return text("CUDA error ", static_cast<int>(error));
  }
  const char* meaning = nullptr;
  if (symbols_.cuGetErrorString(error, &meaning) != kSuccess || meaning == nullptr) return name;
  return text(name, " (", meaning, ")");
}

std::string CudaDevice::memory_left(Place place) const {
  if (place == Place::kHost) return "; the system cannot page-lock that much host memory";
  const CudaScope scope(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  if (symbols_.cuMemGetInfo(&free, &total) != kSuccess) return "";
  return text("; ", free, " of ", total, " bytes free on device ", info_.ordinal, " (", info_.name,
              ")");
}

Status CudaDevice::check(Error error, const char* call, CallFor what) const {
  if (error == kSuccess) return {};
  std::string message = call;
  if (what.size != 0) message += text(" of ", size_text(what.size));
  message += text(": ", error_name(error));
  if (error == kOutOfMemory) message += memory_left(what.place);
  return {code_of(error, what.place), std::move(message)};
}

CudaScope::CudaScope(const CudaDevice& device) : symbols_(device.symbols()) {
  ContextPtr current = nullptr;
  symbols_.cuCtxGetCurrent(&current);
  if (current != device.context()) {
    pushed_ = symbols_.cuCtxPushCurrent(device.context()) == kSuccess;
  }
  exchanged_ = symbols_.cuThreadExchangeStreamCaptureMode(&capture_mode_) == kSuccess;
}

CudaScope::~CudaScope() {
  if (exchanged_) symbols_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  if (!pushed_) return;
  ContextPtr popped = nullptr;
  symbols_.cuCtxPopCurrent(&popped);
}

}  // namespace penstock::driver::cuda
