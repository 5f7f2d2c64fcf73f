// SPDX-License-Identifier: Apache-2.0
// A device whose every call can be made to fail before it does anything, those that tear down, wait
// and ask included, and within whose calls no allocation is made to fail: a driver's own would not
// be thrown to the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "driver/forwarding.hpp"

namespace penstock::testing {

enum class Call {
  kUnreserve,
  kReleaseChunk,
  kUnmap,
  kShareWith,
  kHostFree,
  kManagedFree,
  kDestroyStream,
  kSynchronizeStream,
  kSynchronizeDevice,
  kDestroyEvent,
  kQuery,
  kSynchronizeEvent,
  kOther
};
inline constexpr int kCalls = static_cast<int>(Call::kOther);  // that are named

// While one is there, no allocation of the thread is made to fail.
struct Shelter {
  Shelter() { ++depth; }
  ~Shelter() { --depth; }
  Shelter(const Shelter&) = delete;
  Shelter& operator=(const Shelter&) = delete;
  static inline thread_local int depth = 0;
};

class WatchedDriver : public driver::ForwardingDriver {
 public:
  using Watch = std::function<Status(Call)>;
  explicit WatchedDriver(driver::Driver& device, Watch watch = {})
      : ForwardingDriver(device), watch_(std::move(watch)) {}

#define PENSTOCK_WATCHED(returned, name, call, parameters, arguments)    \
  returned name parameters override {                                    \
    const Shelter shelter;                                               \
    if (Status status = before(Call::call); !status.ok()) return status; \
    return ForwardingDriver::name arguments;                             \
  }
  PENSTOCK_WATCHED(Result<driver::MemoryInfo>, memory_info, kOther, (), ())
  PENSTOCK_WATCHED(Result<Addr>, reserve, kOther, (Bytes size), (size))
  PENSTOCK_WATCHED(Status, unreserve, kUnreserve, (Addr address, Bytes size), (address, size))
  PENSTOCK_WATCHED(Result<driver::Chunk>, create_chunk, kOther, (Bytes size, driver::Place place),
                   (size, place))
  PENSTOCK_WATCHED(Status, release_chunk, kReleaseChunk, (driver::Chunk chunk), (chunk))
  PENSTOCK_WATCHED(Status, map, kOther, (Addr address, Bytes size, driver::Chunk chunk),
                   (address, size, chunk))
  PENSTOCK_WATCHED(Status, unmap, kUnmap, (Addr address, Bytes size), (address, size))
  PENSTOCK_WATCHED(Status, set_access, kOther, (Addr address, Bytes size), (address, size))
  PENSTOCK_WATCHED(Status, share_with, kShareWith, (int ordinal), (ordinal))
  PENSTOCK_WATCHED(Result<void*>, host_alloc, kOther, (Bytes size), (size))
  PENSTOCK_WATCHED(Status, host_free, kHostFree, (void* pointer), (pointer))
  PENSTOCK_WATCHED(Result<Addr>, managed_alloc, kOther, (Bytes size), (size))
  PENSTOCK_WATCHED(Status, managed_free, kManagedFree, (Addr address), (address))
  PENSTOCK_WATCHED(Status, managed_advise, kOther,
                   (Addr address, Bytes size, driver::Advice advice), (address, size, advice))
  PENSTOCK_WATCHED(Status, managed_prefetch, kOther,
                   (Addr address, Bytes size, driver::Place to, driver::Stream stream),
                   (address, size, to, stream))
  PENSTOCK_WATCHED(Result<driver::Stream>, create_stream, kOther, (), ())
  PENSTOCK_WATCHED(Status, destroy_stream, kDestroyStream, (driver::Stream stream), (stream))
  PENSTOCK_WATCHED(Status, synchronize, kSynchronizeStream, (driver::Stream stream), (stream))
  PENSTOCK_WATCHED(Status, synchronize_device, kSynchronizeDevice, (), ())
  PENSTOCK_WATCHED(Result<bool>, capturing, kOther, (driver::Stream stream), (stream))
  PENSTOCK_WATCHED(Result<driver::Event>, create_event, kOther, (bool timing), (timing))
  PENSTOCK_WATCHED(Status, destroy_event, kDestroyEvent, (driver::Event event), (event))
  PENSTOCK_WATCHED(Status, record, kOther, (driver::Event event, driver::Stream stream),
                   (event, stream))
  PENSTOCK_WATCHED(Status, wait, kOther, (driver::Stream stream, driver::Event event),
                   (stream, event))
  PENSTOCK_WATCHED(Status, query, kQuery, (driver::Event event), (event))
  PENSTOCK_WATCHED(Status, synchronize, kSynchronizeEvent, (driver::Event event), (event))
  PENSTOCK_WATCHED(Result<float>, elapsed_ms, kOther, (driver::Event from, driver::Event to),
                   (from, to))
  PENSTOCK_WATCHED(Status, copy_in, kOther,
                   (Addr to, const void* from, Bytes size, driver::Stream stream),
                   (to, from, size, stream))
  PENSTOCK_WATCHED(Status, copy_out, kOther,
                   (void* to, Addr from, Bytes size, driver::Stream stream),
                   (to, from, size, stream))
  PENSTOCK_WATCHED(Status, copy_out_changed, kOther,
                   (void* to, Addr from, Bytes size, driver::Fingerprint* fingerprint, bool still,
                    driver::Stream stream),
                   (to, from, size, fingerprint, still, stream))
  PENSTOCK_WATCHED(Status, copy_within, kOther,
                   (Addr to, Addr from, Bytes size, driver::Stream stream),
                   (to, from, size, stream))
  PENSTOCK_WATCHED(Status, fill, kOther,
                   (Addr to, std::uint8_t value, Bytes size, driver::Stream stream),
                   (to, value, size, stream))
#undef PENSTOCK_WATCHED

 private:
  Status before(Call call) { return watch_ ? watch_(call) : Status{}; }
  const Watch watch_;
};

}  // namespace penstock::testing
