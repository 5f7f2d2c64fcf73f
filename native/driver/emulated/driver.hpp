// SPDX-License-Identifier: Apache-2.0
// The emulated GPU: the driver contract over memfd and mmap.  Real aliasing, a real capacity, real
// copies, and a real SIGSEGV where nothing is mapped; streams are worker threads whose work can be
// delayed at random, so that a missing event shows.  It says nothing about speed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "driver/driver.hpp"

namespace penstock::driver {

struct HostDriverOptions {
  Bytes capacity = 8 * kGiB;       // device memory; create_chunk fails beyond it
  Bytes host_capacity = 0;         // page-locked memory; 0 = no limit of our own
  Bytes granularity = 2 * kMiB;    // a power of two, at least the page size of this machine
  std::uint64_t seed = 0;          // of the random delays
  std::uint32_t max_delay_us = 0;  // before each piece of work in a stream; 0 = none
  // The Nth call that can fail fails (1 = the first), before it does anything; -N: it and all after
  // it; 0 = none.  Calls that tear down (unreserve, release_chunk, unmap, *_free, destroy_*),
  // synchronize() and query() are neither counted nor failed, so that clean-up always can run.
  std::int64_t fail_at_call = 0;
  std::int32_t most_mappings = 0;  // of one chunk; map() fails beyond; 0 = no limit
  bool reuse_handles = false;      // a new stream gets the handle of one that was destroyed
};

// What managed memory has moved so far, by prefetch and by eviction, and holds now, in whole
// granules.  An access by work in a stream moves nothing here.
struct ManagedCounters {
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  Bytes resident = 0;  // on the device
};

// What a capture has kept, to be run any number of times.
using HostGraph = std::shared_ptr<const std::vector<std::function<void()>>>;

class HostDriver : public Driver {
 public:
  // Run `work` in the stream's thread, in order: the stand-in for a kernel.
  virtual Status launch(Stream stream, std::function<void()> work) = 0;
  // As cuStreamBeginCapture and cuStreamEndCapture.  That all streams have come back to the one
  // that began is not checked.
  virtual Status begin_capture(Stream stream) = 0;
  virtual Result<HostGraph> end_capture(Stream stream) = 0;
  virtual Status launch_graph(Stream stream, const HostGraph& graph) = 0;
  virtual void break_captures() = 0;           // what an unsafe call in another thread does
  virtual std::int64_t captures() const = 0;   // streams that are capturing
  virtual std::int64_t dead_uses() const = 0;  // calls that named a destroyed stream
  virtual std::int64_t calls() const = 0;      // so far, of those that fail_at_call counts
  virtual ManagedCounters managed_counters() const = 0;
  // How much of a span of managed memory is on the device now.
  virtual Bytes managed_resident(Addr address, Bytes size) const = 0;
};

Result<std::unique_ptr<HostDriver>> open_host_driver(const HostDriverOptions& options);

}  // namespace penstock::driver
