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

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "driver/ledger.hpp"
#include "driver/text.hpp"
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

inline double cost_us(const DriverCalls& calls, const DriverCosts& costs) {
  return static_cast<double>(calls.create) * costs.create_us +
         static_cast<double>(calls.map) * costs.map_us +
         static_cast<double>(calls.accessed) * costs.set_access_us +
         static_cast<double>(calls.unmapped) * costs.unmap_us +
         static_cast<double>(calls.release) * costs.release_us;
}

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

class ModelledDriver final : public Driver {
 public:
  // kInvalidArgument for a granularity that is no power of two from 4 KiB on, for too many
  // granules, or no link.
  static Result<std::unique_ptr<ModelledDriver>> open(const ModelledDriverOptions& options) {
    if (!(options.link_gb_per_s > 0)) {
      return invalid("a link of ", options.link_gb_per_s, " GB/s; it must be above zero");
    }
    PENSTOCK_TRY(check_shape("modelled device", options.capacity, options.granularity, 4 * kKiB));
    return std::unique_ptr<ModelledDriver>(new ModelledDriver(options));
  }
  ~ModelledDriver() override {
    for (const auto& [pointer, size] : host_) munmap(pointer, size);
  }

  // ---- What a simulation does ----
  [[nodiscard]] Ns now() const { return now_; }
  void advance(Ns by) { now_ += by; }
  // The calling thread waits until then.
  void wait_until(Ns then) { now_ = std::max(now_, then); }
  // A kernel.
  void launch(Stream stream, Ns duration) {
    kernels_end_ = std::max({kernels_end_, end(stream), now_}) + duration;
    end(stream) = kernels_end_;
    busy(Lane::kCompute, kernels_end_ - duration, kernels_end_);
  }
  // What is given to a stream from here on begins no earlier.
  void hold(Stream stream, Ns until) { end(stream) = std::max(end(stream), until); }
  [[nodiscard]] Ns end_of(Stream stream) { return std::max(end(stream), now_); }
  [[nodiscard]] Ns kernels_end() const { return kernels_end_; }
  // What backing one page, and taking its backing away, would cost the calling thread now.
  [[nodiscard]] Ns mapping_time() const { return from_us(options_.costs.map_us) + access_time(); }
  [[nodiscard]] Ns unmapping_time() const { return from_us(options_.costs.unmap_us); }
  // The next copy_out_changed() of it finds it changed, through whatever address the chunks behind
  // it are reached then.  `unit` below is the grain of what no chunk is behind.
  void changed(Addr address, Bytes size) {
    each_key(address, size, [this](std::uint64_t key) { changed_.insert(key); });
  }
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
  LiveCounts live() const override {
    LiveCounts live;
    ledger_.count_live(live);
    live.host_allocations = static_cast<std::int64_t>(host_.size());
    live.streams = std::ranges::count_if(
        streams_, [](const auto& stream) { return stream.first >= kFirstStream; });
    live.events = std::ssize(events_) - std::ssize(spare_events_);
    return live;
  }
  Result<MemoryInfo> memory_info() override {
    return MemoryInfo{options_.capacity - used_, options_.capacity};
  }

  Result<Addr> reserve(Bytes size) override {
    return ledger_.reserve(size, [&] { return take_addresses(size); });
  }
  Status unreserve(Addr address, Bytes size) override {
    PENSTOCK_TRY(ledger_.unreserve(address, size, [] {}));
    try {
      spare_ranges_[size].push_back(address);
    } catch (const std::bad_alloc&) {  // then nothing lies there again
    }
    return {};
  }
  Result<Chunk> create_chunk(Bytes size, Place place) override {
    advance(from_us(options_.costs.create_us));
    if (place != Place::kDevice) return lacks("chunks of the host's");
    return ledger_.create_chunk(size, place, [&]() -> Result<std::uint64_t> {
      if (size > options_.capacity - used_) {
        return Status(Code::kOutOfMemory, "create_chunk: ", size_text(size),
                      " do not fit: ", size_text(used_), " of ", size_text(options_.capacity),
                      " are in use");
      }
      used_ += size;
      peak_ = std::max(peak_, used_);
      ++calls_.create;
      return std::uint64_t{0};
    });
  }
  Status release_chunk(Chunk chunk) override {
    return ledger_.release_chunk(chunk, [this](const Ledger::ChunkEntry&) { ++calls_.release; });
  }
  Status map(Addr address, Bytes size, Chunk chunk) override {
    advance(from_us(options_.costs.map_us));
    return ledger_.map(address, size, chunk, [this](const Ledger::ChunkEntry&) { ++calls_.map; });
  }
  Status unmap(Addr address, Bytes size) override {
    advance(unmapping_time());
    return ledger_.unmap(address, size,
                         [this](std::int64_t mappings) { calls_.unmapped += mappings; });
  }
  Status set_access(Addr address, Bytes size) override {
    advance(access_time());
    return ledger_.set_access(address, size,
                              [this](std::int64_t mappings) { calls_.accessed += mappings; });
  }

  Result<void*> host_alloc(Bytes size) override {
    void* const pointer = mmap(nullptr, std::max<Bytes>(size, 1), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) {
      return Status(Code::kHostOutOfMemory, "host_alloc: no addresses for ", size_text(size));
    }
    host_.emplace(pointer, std::max<Bytes>(size, 1));
    return pointer;
  }
  Status host_free(void* pointer) override {
    const auto found = host_.find(pointer);
    if (found == host_.end()) return invalid("host_free: nothing was allocated at ", pointer);
    munmap(pointer, found->second);
    host_.erase(found);
    return {};
  }

  Result<Stream> create_stream() override {
    const Stream stream{next_stream_++};
    end(stream) = now_;
    return stream;
  }
  Status destroy_stream(Stream stream) override {
    streams_.erase(static_cast<std::uint64_t>(stream));
    return {};
  }
  Status synchronize(Stream stream) override {
    wait_until(end(stream));
    return {};
  }
  Status synchronize_device() override {
    for (const auto& [stream, until] : streams_) wait_until(until);
    return {};
  }

  Result<Event> create_event(bool) override {
    if (spare_events_.empty()) {
      room_for(spare_events_, events_.size() + 1);
      events_.push_back(0);
      return Event{events_.size()};
    }
    const Event event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }
  Status destroy_event(Event event) override {
    time_of(event) = 0;
    spare_events_.push_back(event);
    return {};
  }
  Status record(Event event, Stream stream) override {
    time_of(event) = end_of(stream);
    return {};
  }
  Status wait(Stream stream, Event event) override {
    hold(stream, time_of(event));
    return {};
  }
  Status query(Event event) override {
    if (time_of(event) <= now_) return {};
    return {Code::kNotReady, "the event has not happened yet"};
  }
  Status synchronize(Event event) override {
    wait_until(time_of(event));
    return {};
  }
  Result<float> elapsed_ms(Event from, Event to) override {
    return static_cast<float>(time_of(to) - time_of(from)) / 1e6F;
  }

  Status copy_in(Addr to, const void*, Bytes size, Stream stream) override {
    each_key(to, size, [this](std::uint64_t key) { changed_.erase(key); });
    advance(from_us(options_.copy_call_us));
    copy(Lane::kIn, size, stream);
    return {};
  }
  Status copy_out(void*, Addr, Bytes size, Stream stream) override {
    advance(from_us(options_.copy_call_us));
    copy(Lane::kOut, size, stream);
    return {};
  }
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint, bool still,
                          Stream stream) override {
    PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
    advance(from_us(options_.digest_call_us));
    const bool known = std::exchange(fingerprint->valid, 1U) != 0;
    bool different = !known;
    each_key(from, size,
             [&](std::uint64_t key) { different = changed_.erase(key) > 0 || different; });
    hold(stream, end_of(stream) + device_time(size));
    if (different && known) ++fingerprint->changes;
    if (different && still) ++fingerprint->late;
    if (different || !still) copy(Lane::kOut, size, stream);
    return {};
  }
  Status copy_within(Addr, Addr, Bytes size, Stream stream) override {
    hold(stream, end_of(stream) + device_time(2 * size));
    return {};
  }
  Status fill(Addr, std::uint8_t, Bytes size, Stream stream) override {
    hold(stream, end_of(stream) + device_time(size));
    return {};
  }
  Ns* modelled_time() override { return &now_; }

 private:
  static constexpr std::uint64_t kFirstStream = 16;  // below are those that mean a default stream

  // Far from small numbers and from anything that could be a host pointer of this process.
  static constexpr Addr kFirstAddress = Addr{1} << 44;
  static constexpr Addr kEnd = kFirstAddress + (Addr{1} << 47);  // as many as on a GPU

  explicit ModelledDriver(const ModelledDriverOptions& options)
      : options_(options),
        ledger_(options.granularity,
                [this](const Ledger::ChunkEntry& unused) { used_ -= unused.size; }),
        next_(kFirstAddress),
        in_(options.link_gb_per_s, from_us(options.copy_latency_us)),
        out_(options.link_gb_per_s, from_us(options.copy_latency_us)),
        unit_(options.granularity) {
    info_.name = "modelled";
    info_.total = options.capacity;
    info_.granularity = options.granularity;
    info_.virtual_memory = true;
    info_.emulated = true;
  }
  Result<Addr> take_addresses(Bytes size) {
    if (auto& spare = spare_ranges_[size]; !spare.empty()) {
      const Addr address = spare.back();
      spare.pop_back();
      return address;
    }
    if (size > kEnd - kFirstAddress) {
      return invalid("reserve: no device has ", size_text(size), " of addresses");
    }
    // One granule stays unused between ranges, so that nothing ever crosses from one to the next.
    if (size > kEnd - next_ || kEnd - next_ - size < options_.granularity) {
      return Status(Code::kOutOfMemory, "reserve: no ", size_text(size),
                    " of contiguous address space left");
    }
    return std::exchange(next_, next_ + size + options_.granularity);
  }
  static Ns from_us(double us) { return static_cast<Ns>(us * 1e3); }
  Ns& end(Stream stream) { return streams_[static_cast<std::uint64_t>(stream)]; }
  Ns& time_of(Event event) { return events_[static_cast<std::uint64_t>(event) - 1]; }
  [[nodiscard]] Ns device_time(Bytes bytes) const {
    return static_cast<Ns>(static_cast<double>(bytes) / options_.device_gb_per_s);
  }
  [[nodiscard]] Ns access_time() const {
    return from_us(kernels_end_ > now_ ? options_.costs.set_access_us
                                       : options_.set_access_idle_us);
  }
  void copy(Lane lane, Bytes size, Stream stream) {
    if (size == 0) return;
    ModelledLink& link = lane == Lane::kIn ? in_ : out_;
    link.forget_before(now_);
    end(stream) = link.copy(end_of(stream), size);
    busy(lane, end(stream) - link.length_of(size), end(stream));
  }
  void busy(Lane lane, Ns from, Ns to) {
    if (!options_.keep_spans) return;
    const bool on = !spans_.empty() && spans_.back().lane == lane && spans_.back().end == from;
    if (on) {
      spans_.back().end = to;
    } else {
      spans_.push_back({lane, from, to});
    }
  }
  // Of the chunk behind an address, else of the unit that it lies in.
  [[nodiscard]] std::uint64_t key_of(Addr address) const {
    const Chunk behind = ledger_.chunk_at(address);
    if (behind == Chunk{}) return address / unit_;
    return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(behind);
  }
  template <typename Function>
  void each_key(Addr address, Bytes size, Function&& function) const {
    const Bytes grain = std::min(unit_, info_.granularity);
    for (Addr i = address / grain; size > 0 && i <= (address + size - 1) / grain; ++i) {
      function(key_of(i * grain));
    }
  }

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
