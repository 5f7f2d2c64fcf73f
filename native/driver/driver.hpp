// SPDX-License-Identifier: Apache-2.0
// The contract between Penstock and the machine: everything the engine may ask of a GPU, and
// nothing else.  cuda_driver speaks to libcuda.so.1; host_driver is the emulated GPU.  Both pass
// tests/native/conformance.hpp, which is the contract in executable form.
//
// Rules that both keep
//  * A range is reserved addresses and has no backing.  Touching a part of it that is not mapped,
//    or is mapped but has no access set, is fatal to the toucher (a GPU fault; SIGSEGV here).
//  * map() backs exactly one whole chunk; unmap() takes whole mappings, several at once if they
//    are adjacent.  The same chunk may be mapped at several addresses at the same time.
//  * set_access() takes whole mappings as well; a new mapping has no access until it is called.
//  * unmap() does not wait for work in flight: the caller orders it by events.  (Measured on an
//    H200: cuMemUnmap returns in 25-95 us while an unrelated kernel runs.)  Do the same for
//    host_free() and managed_free().
//  * A chunk released while still mapped lives until its last mapping goes.
//  * wait() takes the event as it was last recorded when wait() is called; recording it anew later
//    does not move that wait.  An event never recorded counts as complete.
//  * kDefaultStream is the legacy default stream on CUDA and the calling thread itself on the
//    emulated GPU: work given to it is done when the call returns.  kPerThreadStream is another
//    stream in each thread, which no other thread can name.
//  * No call breaks a capture that goes on in some other stream, except those that wait for or ask
//    about what is captured: a capturing stream, an event recorded in one, or the device.  They
//    fail, and the capture is lost; a caller that does not know asks capturing() first.
//  * Copies and fills may have any size and offset, cross mappings, and be of nothing.  The host's
//    side lies in one allocation, page-locked or not.  The two
//    sides of copy_within() may not overlap.
//  * What makes no sense is kInvalidArgument and changes nothing.  A stream or event that does
//    not exist is found out by the emulated GPU only.
//  * Every function may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "base/units.hpp"
#include "codec/bf16.hpp"

namespace penstock::driver {

enum class Chunk : std::uint64_t {};   // one physical allocation
enum class Stream : std::uint64_t {};  // CUDA: the CUstream itself, so that a framework's work too
enum class Event : std::uint64_t {};

inline constexpr Stream kDefaultStream{0};
inline constexpr Stream kPerThreadStream{2};

enum class Place { kDevice, kHost };

struct DeviceInfo {
  std::string name;
  int ordinal = 0;
  int driver_version = 0;      // as the driver tells it, e.g. 13000; 0 when emulated
  int compute_capability = 0;  // 90 for 9.0; 0 when emulated
  Bytes total = 0;
  Bytes granularity = 0;  // of chunks, ranges and mappings; a power of two
  bool virtual_memory = false;
  bool host_chunks = false;  // Place::kHost works in create_chunk
  bool managed = false;
  bool concurrent_managed = false;
  bool emulated = false;
};

struct MemoryInfo {
  Bytes free = 0;
  Bytes total = 0;
};

enum class Advice {
  kReadMostly,
  kUnsetReadMostly,
  kPreferDevice,
  kPreferHost,
  kUnsetPreferred,
  kMapOnDevice,  // keep it mapped for the device wherever it lies: an access does not fault
};

// What is alive right now, for leak checks; the CUDA driver counts its own calls.
struct LiveCounts {
  std::int64_t ranges = 0;
  std::int64_t chunks = 0;  // held; one that is released but mapped shows in mappings alone
  std::int64_t mappings = 0;
  std::int64_t host_allocations = 0;
  std::int64_t managed_allocations = 0;
  std::int64_t streams = 0;
  std::int64_t events = 0;
  bool operator==(const LiveCounts&) const = default;
};

// What a piece of memory was when it last left.  In page-locked host memory, all zero at first;
// with `valid` at zero, as if it never had.
struct Fingerprint {
  std::uint64_t place = 0;    // the driver's own: where it keeps the digest, while it lives
  std::uint32_t valid = 0;    // there was a copy
  std::uint32_t changes = 0;  // how often it was another one than before; the device counts
  std::uint32_t late = 0;     // how often it was copied though `still`; the device counts
};
static_assert(offsetof(Fingerprint, late) == offsetof(Fingerprint, changes) + 4);  // two counts

class Driver {
 public:
  virtual ~Driver() = default;
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  virtual const DeviceInfo& info() const = 0;
  virtual LiveCounts live() const = 0;
  virtual Result<MemoryInfo> memory_info() = 0;

  // Virtual memory.  Sizes and addresses are multiples of info().granularity, except where a
  // range comes back from reserve(), which is aligned at least so.
  virtual Result<Addr> reserve(Bytes size) = 0;
  virtual Status unreserve(Addr address, Bytes size) = 0;  // must hold no mapping
  virtual Result<Chunk> create_chunk(Bytes size, Place place) = 0;
  virtual Status release_chunk(Chunk chunk) = 0;
  virtual Status map(Addr address, Bytes size, Chunk chunk) = 0;  // size == the chunk's
  virtual Status unmap(Addr address, Bytes size) = 0;
  virtual Status set_access(Addr address, Bytes size) = 0;         // read and write, for the device
  Status map_with_access(Addr address, Bytes size, Chunk chunk) {  // on failure neither
    PENSTOCK_TRY(map(address, size, chunk));
    Status status = set_access(address, size);
    if (!status.ok()) (void)unmap(address, size);
    return status;
  }
  // From here on set_access() gives the device with this ordinal access as well, and what is mapped
  // already is given it now; for that some of it may be mapped anew, so that no work may be under
  // way in it.  kUnsupported where it cannot reach this one's memory.
  virtual Status share_with(int) { return lacks("other devices to share with"); }

  // Page-locked host memory of exactly this size, visible to the device.
  virtual Result<void*> host_alloc(Bytes size) = 0;
  virtual Status host_free(void* pointer) = 0;

  // Managed memory.  prefetch() is ordered in its stream, and may block the caller meanwhile.
  virtual Result<Addr> managed_alloc(Bytes) { return lacks("managed memory"); }
  virtual Status managed_free(Addr) { return lacks("managed memory"); }
  virtual Status managed_advise(Addr, Bytes, Advice) { return lacks("managed memory"); }
  virtual Status managed_prefetch(Addr, Bytes, Place, Stream) { return lacks("managed memory"); }

  virtual Result<Stream> create_stream() = 0;
  virtual Status destroy_stream(Stream stream) = 0;  // after the work already in it
  virtual Status synchronize(Stream stream) = 0;
  virtual Status synchronize_device() = 0;  // all streams, those of others too
  // Whether what is given to the stream becomes part of a graph, be it one that will not be made.
  virtual Result<bool> capturing(Stream) { return false; }

  virtual Result<Event> create_event(bool timing) = 0;
  virtual Status destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  virtual Status query(Event event) = 0;  // ok, kNotReady, or a failure
  virtual Status synchronize(Event event) = 0;
  virtual Result<float> elapsed_ms(Event from, Event to) = 0;  // both complete, both timing

  virtual Status copy_in(Addr to, const void* from, Bytes size, Stream stream) = 0;
  virtual Status copy_out(void* to, Addr from, Bytes size, Stream stream) = 0;
  // copy_out(), and a comparison with what the memory was at the last copy with this fingerprint to
  // this place, as far as a digest of 128 bits tells; where it is `still`, no copy of what has not
  // changed.  `size` is a multiple of 16, `to` page-locked; such copies go by one stream.
  virtual Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                  bool still, Stream stream) = 0;
  virtual Status copy_within(Addr to, Addr from, Bytes size, Stream stream) = 0;
  virtual Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) = 0;

  // Adds to 256 counts of 32 bits how many bf16 values of some memory have which exponent.
  virtual Status survey(Addr, Addr, Bytes, Stream) { return lacks("an encoder"); }  // counts, raw
  // What codec::encode() makes of some memory, in as much as its survey says.  All of these are on
  // the device, apart, and multiples of 16.
  virtual Status encode(Addr, Addr, const codec::Survey&, Stream) { return lacks("an encoder"); }
  // What codec::encode() made of some memory, and lies at `from`, becomes that memory at `to`; both
  // on the device, apart, and multiples of 16.  It is not verified here: it comes from memory of
  // our own, which was.
  virtual Status decode(Addr, Addr, const codec::Shape&, Stream) { return lacks("a decoder"); }

  // Where time is modelled, the calling thread's, in ns; null on a machine that has its own.  There
  // is one thread then: who would have had another sets this to that one's time while it works.
  virtual std::int64_t* modelled_time() { return nullptr; }

 protected:
  [[nodiscard]] Status lacks(const char* what) const {
    return Status(Code::kUnsupported, info().name, " has no ", what);
  }
};

// The CUDA device with this ordinal, through libcuda.so.1 (loaded here, never linked).  Uses the
// device's primary context, the one PyTorch uses.  kNoDevice when there is no driver or device.
Result<std::unique_ptr<Driver>> open_cuda_driver(int ordinal);

}  // namespace penstock::driver
