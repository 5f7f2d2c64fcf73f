// SPDX-License-Identifier: Apache-2.0
// A driver without memory but with a clock, for replays and simulations: every stream has a time
// until which it is busy, every event the time at which it happens, copies take their turn on a
// link of two directions, and the calls that change mappings or give copies take the calling
// thread's time.  So an engine runs on it as it is, and its schedule can be read off.
//
// It hands out addresses and chunks, has the ledger that real drivers have, enforces a capacity,
// and adds up what the calls would have cost a GPU.  Kernels run one at a time whatever their
// stream.  What a copy out finds changed is what changed() named.  Page-locked memory is real, but
// takes nothing until it is written.  Managed memory and chunks of the host's are kUnsupported.
//
// Thread rule: one thread, whose clock now() is.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/driver.hpp"
#include "driver/ledger.hpp"
#include "lab/machines/modelled_link.hpp"

namespace penstock::driver {

// Microseconds a chunk of up to 32 MiB: creating it, mapping it, giving access to it, unmapping it.
// The defaults were measured on an H200 for one chunk alone while a kernel runs, as a pager moves
// them.  Releasing happens behind the program's back or at its end, and counts nothing.
struct DriverCosts {
  double create_us = 10;
  double map_us = 1.1;
  double set_access_us = 150;
  double unmap_us = 60;
  double release_us = 0;
};

struct DriverCalls {
  std::int64_t create = 0;
  std::int64_t release = 0;
  std::int64_t map = 0;
  std::int64_t unmapped = 0;  // mappings
  std::int64_t accessed = 0;  // mappings
};

double cost_us(const DriverCalls& calls, const DriverCosts& costs);

struct ModelledDriverOptions {
  Bytes capacity = 64 * kGiB;  // of device chunks
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
  bool keep_spans = false;        // see spans()
};

// A time that kernels, or one direction of the link, were busy.
enum class Lane { kCompute, kIn, kOut };
struct BusySpan {
  Lane lane = Lane::kCompute;
  Ns begin = 0;
  Ns end = 0;
};

inline constexpr Bytes kMostGranules = Bytes{1} << 25;  // of a modelled device

class ModelledDriver final : public Driver {
 public:
  // kInvalidArgument for a granularity that is no power of two from 4 KiB on, for too many
  // granules, or no link.
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
  // With keep_spans, what was busy since forget_spans_before(), which is called now and then; the
  // last of them may still begin.
  [[nodiscard]] const std::vector<BusySpan>& spans() const { return spans_; }
  void forget_spans_before(Ns then) {
    std::erase_if(spans_, [then](const BusySpan& span) { return span.end <= then; });
  }

  // ---- What a replay reads ----
  [[nodiscard]] const DriverCalls& calls() const { return calls_; }
  [[nodiscard]] double modelled_us() const { return cost_us(calls_, options_.costs); }
  [[nodiscard]] Bytes used() const { return used_; }  // chunks that are held or mapped
  [[nodiscard]] Bytes peak() const { return peak_; }

  const DeviceInfo& info() const override { return info_; }
  LiveCounts live() const override;
  Result<MemoryInfo> memory_info() override {
    return MemoryInfo{options_.capacity - used_, options_.capacity};
  }

  Result<Addr> reserve(Bytes size) override;
  Status unreserve(Addr address, Bytes size) override;
  Result<Chunk> create_chunk(Bytes size, Place place) override;
  Status release_chunk(Chunk chunk) override;
  Status map(Addr address, Bytes size, Chunk chunk) override;
  Status unmap(Addr address, Bytes size) override;
  Status set_access(Addr address, Bytes size) override;
  Status share_with(int) override { return not_modelled(); }

  Result<void*> host_alloc(Bytes size) override;
  Status host_free(void* pointer) override;
  Result<Addr> managed_alloc(Bytes) override { return not_modelled(); }
  Status managed_free(Addr) override { return not_modelled(); }
  Status managed_advise(Addr, Bytes, Advice) override { return not_modelled(); }
  Status managed_prefetch(Addr, Bytes, Place, Stream) override { return not_modelled(); }

  Result<Stream> create_stream() override;
  Status destroy_stream(Stream stream) override;
  Status synchronize(Stream stream) override;
  Status synchronize_device() override;

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
  Status copy_within(Addr, Addr, Bytes size, Stream stream) override;
  Status fill(Addr, std::uint8_t, Bytes size, Stream stream) override;
  Ns* modelled_time() override { return &now_; }

 private:
  static constexpr std::uint64_t kFirstStream = 16;  // below are those that mean a default stream

  explicit ModelledDriver(const ModelledDriverOptions& options);
  static Status not_modelled();
  static Ns from_us(double us) { return static_cast<Ns>(us * 1e3); }
  Ns& end(Stream stream) { return streams_[static_cast<std::uint64_t>(stream)]; }
  Ns& time_of(Event event) { return events_[static_cast<std::uint64_t>(event) - 1]; }
  [[nodiscard]] Ns device_time(Bytes bytes) const;
  [[nodiscard]] Ns access_time() const {
    return from_us(kernels_end_ > now_ ? options_.costs.set_access_us
                                       : options_.set_access_idle_us);
  }
  void copy(Lane lane, Bytes size, Stream stream);
  void busy(Lane lane, Ns from, Ns to);
  // Of the chunk behind an address, else of the unit that it lies in.
  [[nodiscard]] std::uint64_t key_of(Addr address) const;
  template <typename Function>
  void each_key(Addr address, Bytes size, Function&& function) const;

  const ModelledDriverOptions options_;
  DeviceInfo info_;
  Ledger ledger_;
  std::unordered_map<Bytes, std::vector<Addr>> spare_ranges_;  // by size
  Addr next_;                                                  // where addresses are still unused
  Bytes used_ = 0;
  Bytes peak_ = 0;
  DriverCalls calls_;
  std::unordered_map<void*, Bytes> host_;

  Ns now_ = 0;
  Ns kernels_end_ = 0;
  ModelledLink in_;
  ModelledLink out_;
  std::unordered_map<std::uint64_t, Ns> streams_;  // busy until
  std::uint64_t next_stream_ = kFirstStream;
  std::vector<Ns> events_;           // when they happen
  std::vector<Event> spare_events_;  // has room for all of them
  std::vector<BusySpan> spans_;
  Bytes unit_;
  std::unordered_set<std::uint64_t> changed_;  // see key_of()
};

}  // namespace penstock::driver
