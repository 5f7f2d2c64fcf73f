// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that Penstock uses, declared here so that no CUDA
// toolkit is needed to build.  Values and layouts are the same in CUDA 12.2 to 13.0; where a cuda.h
// can be found, tests/native/test_cuda_abi.cpp compares every one of them with it.
#pragma once

#include <cstdint>

namespace penstock::driver::cuda {

using Device = int;
using DevicePtr = std::uint64_t;
using AllocationHandle = std::uint64_t;
using ContextPtr = struct ContextOpaque*;
using StreamPtr = struct StreamOpaque*;
using EventPtr = struct EventOpaque*;
using ModulePtr = struct ModuleOpaque*;
using FunctionPtr = struct FunctionOpaque*;

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidHandle = 400,
  kNotReady = 600,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureImplicit = 906,  // the legacy default stream, while a stream that it waits for captures
};

enum Attribute : int {
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kManagedMemory = 83,
  kConcurrentManagedAccess = 89,
  kHostPointerForRegisteredMemory = 91,
  kVirtualMemoryManagement = 102,
  kGpuDirectRdmaWithVirtualMemory = 110,
  kHostNumaId = 134,
  kHostNumaVirtualMemoryManagement = 141,
};

enum LocationType : int { kLocationDevice = 1, kLocationHost = 2, kLocationHostNuma = 3 };

struct Location {
  LocationType type;
  int id;
};

inline constexpr int kAllocationPinned = 1;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kAccessReadWrite = 3;

struct AllocationProperties {
  int type;
  int requested_handle_types;
  Location location;
  void* win32_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescriptor {
  Location location;
  int flags;
};

enum Advice : int {
  kSetReadMostly = 1,
  kUnsetReadMostly = 2,
  kSetPreferredLocation = 3,
  kUnsetPreferredLocation = 4,
  kSetAccessedBy = 5,
};

inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kAttachGlobal = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr std::uint64_t kProcAddressLegacyStream = 1;

// cuGetProcAddress_v2, which is asked for by that name.
using GetProcAddress = Error (*)(const char*, void**, int, std::uint64_t, int*);

}  // namespace penstock::driver::cuda
