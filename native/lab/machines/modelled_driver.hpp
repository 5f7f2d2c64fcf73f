// SPDX-License-Identifier: Apache-2.0
// A driver without memory but with a clock, for simulations: every stream has a time until which it
// is busy, every event the time at which it happens, copies take their turn on a link of two
// directions, and the calls that change mappings or give copies take the calling thread's time.  So
// an engine runs on it as it is, and its schedule can be read off.
//
// Addresses and chunks are MetadataDriver's.  Kernels run one at a
// time whatever their stream.  What a copy out finds changed is what changed() named.  Page-locked
// memory is real, but takes nothing until it is written.  Managed memory is kUnsupported.
//
// Thread rule: one thread, whose clock now() is.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lab/machines/metadata_driver.hpp"
#include "lab/machines/modelled_link.hpp"

namespace penstock::driver {

struct ModelledDriverOptions {
  Bytes capacity = 64 * kGiB;
  Bytes granularity = 2 * kMiB;
  DriverCosts costs = {};
  double set_access_idle_us = 26;  // set_access() while no kernel runs; costs has it while one does
  double link_gb_per_s = 55;       // each direction
  // Beside its bytes: 264 copies of 9.3 MB took 45.75 ms on an H200 at 55.5 GB/s, 184 31.17
  // (benchmarks/results/run/link.json).
  double copy_latency_us = 4.5;
  double copy_call_us = 0;        // of the calling thread, for a copy over the link
  double digest_call_us = 0;      // for one that goes out if it has changed
  double device_gb_per_s = 3000;  // what a digest reads at
};

class ModelledDriver final : public MetadataDriver {
 public:
  static Result<std::unique_ptr<ModelledDriver>> open(const ModelledDriverOptions& options);
  ~ModelledDriver() override;

  // ---- What a simulation does ----
  [[nodiscard]] Ns now() const { return now_; }
  void advance(Ns by) { now_ += by; }
  // The calling thread waits until then.
  void wait_until(Ns then) { now_ = std::max(now_, then); }
  // A kernel.
  void launch(Stream stream, Ns duration);
  // What is given to a stream from here on begins no earlier.
  void hold(Stream stream, Ns until) { end(stream) = std::max(end(stream), until); }
  [[nodiscard]] Ns end_of(Stream stream) { return std::max(end(stream), now_); }
  [[nodiscard]] Ns kernels_end() const { return kernels_end_; }
  // What backing one page, and taking its backing away, would cost the calling thread now.
  [[nodiscard]] Ns mapping_time() const { return from_us(options_.costs.map_us) + access_time(); }
  [[nodiscard]] Ns unmapping_time() const { return from_us(options_.costs.unmap_us); }
  // The next copy_out_changed() of it finds it changed, through whatever address the chunks behind
  // it are reached then.  `unit` below is the grain of what no chunk is behind.
  void changed(Addr address, Bytes size);
  void set_unit(Bytes unit) { unit_ = unit; }

  LiveCounts live() const override;
  Result<Chunk> create_chunk(Bytes size, Place place) override;
  Status map(Addr address, Bytes size, Chunk chunk) override;
  Status unmap(Addr address, Bytes size) override;
  Status set_access(Addr address, Bytes size) override;

  Result<void*> host_alloc(Bytes size) override;
  Status host_free(void* pointer) override;

  Result<Stream> create_stream() override;
  Status destroy_stream(Stream) override;
  Status synchronize(Stream stream) override;
  Status synchronize_device() override;

  Result<Event> create_event(bool timing) override;
  Status destroy_event(Event) override;
  Status record(Event event, Stream stream) override;
  Status wait(Stream stream, Event event) override;
  Status query(Event event) override;
  Status synchronize(Event event) override;
  Result<float> elapsed_ms(Event from, Event to) override;

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override;
  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override;
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                          Stream stream) override;
  Status copy_within(Addr, Addr, Bytes size, Stream stream) override;
  Status fill(Addr, std::uint8_t, Bytes size, Stream stream) override;
  Ns* modelled_time() override { return &now_; }

 private:
  explicit ModelledDriver(const ModelledDriverOptions& options);
  static Ns from_us(double us) { return static_cast<Ns>(us * 1e3); }
  Ns& end(Stream stream) { return streams_[static_cast<std::uint64_t>(stream)]; }
  [[nodiscard]] Ns device_time(Bytes bytes) const;
  [[nodiscard]] Ns access_time() const {
    return from_us(kernels_end_ > now_ ? options_.costs.set_access_us
                                       : options_.set_access_idle_us);
  }
  void copy(ModelledLink& link, Bytes size, Stream stream);
  // Of the chunk behind an address, else of the unit that it lies in.
  [[nodiscard]] std::uint64_t key_of(Addr address) const;
  template <typename Function>
  void each_key(Addr address, Bytes size, Function&& function) const;

  ModelledDriverOptions options_;
  Ns now_ = 0;
  Ns kernels_end_ = 0;
  ModelledLink in_;
  ModelledLink out_;
  std::unordered_map<std::uint64_t, Ns> streams_;  // busy until
  std::vector<Ns> events_;                         // when they happen
  std::vector<std::uint64_t> spare_events_;
  std::unordered_map<void*, Bytes> host_;
  Bytes unit_;
  std::unordered_set<std::uint64_t> changed_;      // see key_of()
  std::unordered_map<Addr, Chunk> chunks_behind_;  // by granule of addresses
};

}  // namespace penstock::driver
