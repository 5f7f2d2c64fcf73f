// SPDX-License-Identifier: Apache-2.0
// Our own declarations of the CUDA driver's interface against the real ones.  Where the compiler
// finds a cuda.h (CPLUS_INCLUDE_PATH=/usr/local/cuda/include) every value, layout and signature is
// compared when this file is compiled; elsewhere the test says that it compared nothing.
#include "doctest/doctest.h"

#if __has_include(<cuda.h>)

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "driver/cuda/symbols.hpp"

namespace abi = penstock::driver::cuda;

namespace {

// The same call for the machine: as many parameters, each of the same size and kind.
template <class Ours, class Theirs>
constexpr bool same_parameter() {
  return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
         std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
         std::is_class_v<Ours> == std::is_class_v<Theirs>;
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class... Ours, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<abi::Error (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(same_parameter<Ours, Theirs>() && ...)> {
};

#define PENSTOCK_SAME_FORM(member, function) \
  static_assert(SameCall<decltype(abi::Symbols::member), decltype(&function)>::value, #function)
#define PENSTOCK_SAME_CALL(function) PENSTOCK_SAME_FORM(function, function)

PENSTOCK_SAME_CALL(cuInit);
PENSTOCK_SAME_CALL(cuDriverGetVersion);
PENSTOCK_SAME_CALL(cuGetErrorName);
PENSTOCK_SAME_CALL(cuGetErrorString);
PENSTOCK_SAME_CALL(cuDeviceGet);
PENSTOCK_SAME_CALL(cuDeviceGetCount);
PENSTOCK_SAME_CALL(cuDeviceGetName);
PENSTOCK_SAME_CALL(cuDeviceGetAttribute);
PENSTOCK_SAME_CALL(cuDeviceCanAccessPeer);
PENSTOCK_SAME_CALL(cuMemAlloc);
PENSTOCK_SAME_CALL(cuModuleLoadData);
PENSTOCK_SAME_CALL(cuModuleUnload);
PENSTOCK_SAME_CALL(cuModuleGetFunction);
PENSTOCK_SAME_CALL(cuLaunchKernel);
PENSTOCK_SAME_CALL(cuDeviceTotalMem);
PENSTOCK_SAME_CALL(cuDevicePrimaryCtxRetain);
PENSTOCK_SAME_CALL(cuDevicePrimaryCtxRelease);
PENSTOCK_SAME_CALL(cuCtxGetCurrent);
PENSTOCK_SAME_CALL(cuCtxPushCurrent);
PENSTOCK_SAME_CALL(cuCtxPopCurrent);
PENSTOCK_SAME_CALL(cuCtxSynchronize);
PENSTOCK_SAME_CALL(cuThreadExchangeStreamCaptureMode);
PENSTOCK_SAME_CALL(cuMemGetInfo);
PENSTOCK_SAME_CALL(cuMemGetAllocationGranularity);
PENSTOCK_SAME_CALL(cuMemAddressReserve);
PENSTOCK_SAME_CALL(cuMemAddressFree);
PENSTOCK_SAME_CALL(cuMemCreate);
PENSTOCK_SAME_CALL(cuMemRelease);
PENSTOCK_SAME_CALL(cuMemMap);
PENSTOCK_SAME_CALL(cuMemUnmap);
PENSTOCK_SAME_CALL(cuMemSetAccess);
PENSTOCK_SAME_CALL(cuMemHostAlloc);
PENSTOCK_SAME_CALL(cuMemFreeHost);
PENSTOCK_SAME_CALL(cuMemHostRegister);
PENSTOCK_SAME_CALL(cuMemHostUnregister);
PENSTOCK_SAME_CALL(cuMemAllocManaged);
PENSTOCK_SAME_CALL(cuMemFree);
PENSTOCK_SAME_FORM(cuMemAdvise, cuMemAdvise_v2);
PENSTOCK_SAME_FORM(cuMemPrefetchAsync, cuMemPrefetchAsync_v2);
PENSTOCK_SAME_CALL(cuMemcpyHtoDAsync);
PENSTOCK_SAME_CALL(cuMemcpyDtoHAsync);
PENSTOCK_SAME_CALL(cuMemcpyDtoDAsync);
PENSTOCK_SAME_CALL(cuMemsetD8Async);
PENSTOCK_SAME_CALL(cuStreamCreate);
PENSTOCK_SAME_CALL(cuStreamDestroy);
PENSTOCK_SAME_CALL(cuStreamSynchronize);
PENSTOCK_SAME_CALL(cuStreamIsCapturing);
PENSTOCK_SAME_CALL(cuStreamWaitEvent);
PENSTOCK_SAME_CALL(cuEventCreate);
PENSTOCK_SAME_CALL(cuEventDestroy);
PENSTOCK_SAME_CALL(cuEventRecord);
PENSTOCK_SAME_CALL(cuEventQuery);
PENSTOCK_SAME_CALL(cuEventSynchronize);
PENSTOCK_SAME_CALL(cuEventElapsedTime);

#define PENSTOCK_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long>(abi::ours) == static_cast<long>(theirs), #theirs)

PENSTOCK_SAME_VALUE(kSuccess, CUDA_SUCCESS);
PENSTOCK_SAME_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
PENSTOCK_SAME_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
PENSTOCK_SAME_VALUE(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
PENSTOCK_SAME_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
PENSTOCK_SAME_VALUE(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
PENSTOCK_SAME_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
PENSTOCK_SAME_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
PENSTOCK_SAME_VALUE(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
PENSTOCK_SAME_VALUE(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
PENSTOCK_SAME_VALUE(kManagedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
PENSTOCK_SAME_VALUE(kConcurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
PENSTOCK_SAME_VALUE(kVirtualMemoryManagement,
                    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
PENSTOCK_SAME_VALUE(kGpuDirectRdmaWithVirtualMemory,
                    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
PENSTOCK_SAME_VALUE(kHostPointerForRegisteredMemory,
                    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
PENSTOCK_SAME_VALUE(kHostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
#if CUDA_VERSION >= 13000  // has no name before
PENSTOCK_SAME_VALUE(kHostNumaVirtualMemoryManagement,
                    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#endif
PENSTOCK_SAME_VALUE(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
PENSTOCK_SAME_VALUE(kLocationHost, CU_MEM_LOCATION_TYPE_HOST);
PENSTOCK_SAME_VALUE(kLocationHostNuma, CU_MEM_LOCATION_TYPE_HOST_NUMA);
PENSTOCK_SAME_VALUE(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
PENSTOCK_SAME_VALUE(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
PENSTOCK_SAME_VALUE(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
PENSTOCK_SAME_VALUE(kSetReadMostly, CU_MEM_ADVISE_SET_READ_MOSTLY);
PENSTOCK_SAME_VALUE(kUnsetReadMostly, CU_MEM_ADVISE_UNSET_READ_MOSTLY);
PENSTOCK_SAME_VALUE(kSetPreferredLocation, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
PENSTOCK_SAME_VALUE(kUnsetPreferredLocation, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
PENSTOCK_SAME_VALUE(kSetAccessedBy, CU_MEM_ADVISE_SET_ACCESSED_BY);
PENSTOCK_SAME_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
PENSTOCK_SAME_VALUE(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
PENSTOCK_SAME_VALUE(kAttachGlobal, CU_MEM_ATTACH_GLOBAL);
PENSTOCK_SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
PENSTOCK_SAME_VALUE(kEventDefault, CU_EVENT_DEFAULT);
PENSTOCK_SAME_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
PENSTOCK_SAME_VALUE(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
PENSTOCK_SAME_VALUE(kProcAddressLegacyStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);

#define PENSTOCK_SAME_FIELD(ours, our_field, theirs, their_field)                  \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(abi::ours::our_field) == sizeof(theirs::their_field),   \
                #theirs "." #their_field)

static_assert(sizeof(abi::Location) == sizeof(CUmemLocation));
PENSTOCK_SAME_FIELD(Location, type, CUmemLocation, type);
PENSTOCK_SAME_FIELD(Location, id, CUmemLocation, id);
static_assert(sizeof(abi::AccessDescriptor) == sizeof(CUmemAccessDesc));
PENSTOCK_SAME_FIELD(AccessDescriptor, location, CUmemAccessDesc, location);
PENSTOCK_SAME_FIELD(AccessDescriptor, flags, CUmemAccessDesc, flags);
static_assert(sizeof(abi::AllocationProperties) == sizeof(CUmemAllocationProp));
PENSTOCK_SAME_FIELD(AllocationProperties, type, CUmemAllocationProp, type);
PENSTOCK_SAME_FIELD(AllocationProperties, requested_handle_types, CUmemAllocationProp,
                    requestedHandleTypes);
PENSTOCK_SAME_FIELD(AllocationProperties, location, CUmemAllocationProp, location);
PENSTOCK_SAME_FIELD(AllocationProperties, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
PENSTOCK_SAME_FIELD(AllocationProperties, flags, CUmemAllocationProp, allocFlags);
static_assert(offsetof(abi::AllocationProperties, flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));

}  // namespace

TEST_CASE("CUDA: our declarations are those of cuda.h") {
  MESSAGE("compared with cuda.h of CUDA " << CUDA_VERSION << " when compiled");
}

#else

TEST_CASE("CUDA: our declarations are those of cuda.h") {
  MESSAGE("no cuda.h found: nothing compared");
}

#endif
