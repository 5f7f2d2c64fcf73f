// SPDX-License-Identifier: Apache-2.0
#include "lab/machines/modelled_driver.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "driver/text.hpp"

namespace penstock::driver {
namespace {

// Far from small numbers and from anything that could be a host pointer of this process.
constexpr Addr kFirstAddress = Addr{1} << 44;
constexpr Addr kEnd = kFirstAddress + (Addr{1} << 47);  // as many as on a GPU

}  // namespace

double cost_us(const DriverCalls& calls, const DriverCosts& costs) {
  return static_cast<double>(calls.create) * costs.create_us +
         static_cast<double>(calls.map) * costs.map_us +
         static_cast<double>(calls.accessed) * costs.set_access_us +
         static_cast<double>(calls.unmapped) * costs.unmap_us +
         static_cast<double>(calls.release) * costs.release_us;
}

Result<std::unique_ptr<ModelledDriver>> ModelledDriver::open(const ModelledDriverOptions& options) {
  if (!(options.link_gb_per_s > 0)) {
    return Status(Code::kInvalidArgument,
                  text("a link of ", options.link_gb_per_s, " GB/s; it must be above zero"));
  }
  if (!std::has_single_bit(options.granularity) || options.granularity < 4 * kKiB) {
    return Status(Code::kInvalidArgument, text("a granularity of ", size_text(options.granularity),
                                               "; it must be a power of two from 4 KiB on"));
  }
  // An allocator has books of every granule.
  if (options.capacity / options.granularity > kMostGranules) {
    return Status(Code::kInvalidArgument,
                  text(size_text(options.capacity), " of ", size_text(options.granularity),
                       "; at most ", size_text(kMostGranules * options.granularity)));
  }
  return std::unique_ptr<ModelledDriver>(new ModelledDriver(options));
}

ModelledDriver::ModelledDriver(const ModelledDriverOptions& options)
    : options_(options),
      ledger_(options.granularity),
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

ModelledDriver::~ModelledDriver() {
  for (const auto& [pointer, size] : host_) munmap(pointer, size);
}

Ns ModelledDriver::device_time(Bytes bytes) const {
  return static_cast<Ns>(static_cast<double>(bytes) / options_.device_gb_per_s);
}

void ModelledDriver::launch(Stream stream, Ns duration) {
  kernels_end_ = std::max({kernels_end_, end(stream), now_}) + duration;
  end(stream) = kernels_end_;
  busy(Lane::kCompute, kernels_end_ - duration, kernels_end_);
}

std::uint64_t ModelledDriver::key_of(Addr address) const {
  const Chunk behind = ledger_.chunk_at(address);
  if (behind == Chunk{}) return address / unit_;
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(behind);
}

template <typename Function>
void ModelledDriver::each_key(Addr address, Bytes size, Function&& function) const {
  const Bytes grain = std::min(unit_, info_.granularity);
  for (Addr i = address / grain; size > 0 && i <= (address + size - 1) / grain; ++i) {
    function(key_of(i * grain));
  }
}

void ModelledDriver::changed(Addr address, Bytes size) {
  each_key(address, size, [this](std::uint64_t key) { changed_.insert(key); });
}

Status ModelledDriver::not_modelled() {
  return {Code::kUnsupported, "the modelled machine has no such memory"};
}

LiveCounts ModelledDriver::live() const {
  LiveCounts live;
  ledger_.count_live(live);
  live.host_allocations = static_cast<std::int64_t>(host_.size());
  live.streams = std::ranges::count_if(
      streams_, [](const auto& stream) { return stream.first >= kFirstStream; });
  live.events = std::ssize(events_) - std::ssize(spare_events_);
  return live;
}

Result<Addr> ModelledDriver::reserve(Bytes size) {
  PENSTOCK_TRY(ledger_.check_size("reserve", size));
  Addr address = next_;
  if (auto& spare = spare_ranges_[size]; !spare.empty()) {
    address = spare.back();
    spare.pop_back();
  } else {
    // One granule stays unused between ranges, so that nothing ever crosses from one to the next.
    if (size > kEnd - kFirstAddress) {
      return Status(Code::kInvalidArgument,
                    text("reserve: no device has ", size_text(size), " of addresses"));
    }
    if (size > kEnd - next_ || kEnd - next_ - size < options_.granularity) {
      return Status(Code::kOutOfMemory,
                    text("reserve: no ", size_text(size), " of contiguous address space left"));
    }
    next_ += size + options_.granularity;
  }
  ledger_.add_range(address, size);
  return address;
}

Status ModelledDriver::unreserve(Addr address, Bytes size) {
  PENSTOCK_TRY(ledger_.check_range(address, size));
  ledger_.drop_range(address);
  try {
    spare_ranges_[size].push_back(address);
  } catch (const std::bad_alloc&) {  // then nothing lies there again
  }
  return {};
}

Result<Chunk> ModelledDriver::create_chunk(Bytes size, Place place) {
  advance(from_us(options_.costs.create_us));
  if (place != Place::kDevice) return not_modelled();
  PENSTOCK_TRY(ledger_.check_size("create_chunk", size));
  if (size > options_.capacity - used_) {
    return Status(Code::kOutOfMemory,
                  text("create_chunk: ", size_text(size), " do not fit: ", size_text(used_), " of ",
                       size_text(options_.capacity), " are in use"));
  }
  used_ += size;
  peak_ = std::max(peak_, used_);
  ++calls_.create;
  return ledger_.add_chunk(0, size, place);
}

Status ModelledDriver::release_chunk(Chunk chunk) {
  PENSTOCK_TRY(ledger_.check_chunk("release_chunk", chunk).status());
  ledger_.release(chunk, [this](const auto& unused) { used_ -= unused.size; });
  ++calls_.release;
  return {};
}

Status ModelledDriver::map(Addr address, Bytes size, Chunk chunk) {
  advance(from_us(options_.costs.map_us));
  PENSTOCK_TRY(ledger_.check_map(address, size, chunk).status());
  ledger_.add_mapping(address, size, chunk);
  ++calls_.map;
  return {};
}

Status ModelledDriver::unmap(Addr address, Bytes size) {
  advance(unmapping_time());
  std::int64_t mappings = 0;
  PENSTOCK_TRY(ledger_.check_mapped("unmap", address, size, &mappings));
  calls_.unmapped += mappings;
  ledger_.drop_mappings(address, size, [this](const auto& unused) { used_ -= unused.size; });
  return {};
}

Status ModelledDriver::set_access(Addr address, Bytes size) {
  advance(access_time());
  std::int64_t mappings = 0;
  PENSTOCK_TRY(ledger_.check_mapped("set_access", address, size, &mappings));
  calls_.accessed += mappings;
  return {};
}

Result<void*> ModelledDriver::host_alloc(Bytes size) {
  void* const pointer = mmap(nullptr, std::max<Bytes>(size, 1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) {
    return Status(Code::kHostOutOfMemory, text("host_alloc: no addresses for ", size_text(size)));
  }
  host_.emplace(pointer, std::max<Bytes>(size, 1));
  return pointer;
}

Status ModelledDriver::host_free(void* pointer) {
  const auto found = host_.find(pointer);
  if (found == host_.end()) {
    return {Code::kInvalidArgument, text("host_free: nothing was allocated at ", pointer)};
  }
  munmap(pointer, found->second);
  host_.erase(found);
  return {};
}

Result<Stream> ModelledDriver::create_stream() {
  const Stream stream{next_stream_++};
  end(stream) = now_;
  return stream;
}

Status ModelledDriver::destroy_stream(Stream stream) {
  streams_.erase(static_cast<std::uint64_t>(stream));
  return {};
}

Status ModelledDriver::synchronize(Stream stream) {
  wait_until(end(stream));
  return {};
}

Status ModelledDriver::synchronize_device() {
  for (const auto& [stream, until] : streams_) wait_until(until);
  return {};
}

Result<Event> ModelledDriver::create_event(bool) {
  if (spare_events_.empty()) {
    if (spare_events_.capacity() <= events_.size()) spare_events_.reserve(2 * events_.size() + 8);
    events_.push_back(0);
    return Event{events_.size()};
  }
  const Event event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

Status ModelledDriver::destroy_event(Event event) {
  time_of(event) = 0;
  spare_events_.push_back(event);
  return {};
}

Status ModelledDriver::record(Event event, Stream stream) {
  time_of(event) = end_of(stream);
  return {};
}

Status ModelledDriver::wait(Stream stream, Event event) {
  hold(stream, time_of(event));
  return {};
}

Status ModelledDriver::query(Event event) {
  if (time_of(event) <= now_) return {};
  return {Code::kNotReady, "the event has not happened yet"};
}

Status ModelledDriver::synchronize(Event event) {
  wait_until(time_of(event));
  return {};
}

Result<float> ModelledDriver::elapsed_ms(Event from, Event to) {
  return static_cast<float>(time_of(to) - time_of(from)) / 1e6F;
}

void ModelledDriver::copy(Lane lane, Bytes size, Stream stream) {
  if (size == 0) return;
  ModelledLink& link = lane == Lane::kIn ? in_ : out_;
  link.forget_before(now_);
  end(stream) = link.copy(end_of(stream), size);
  busy(lane, end(stream) - link.length_of(size), end(stream));
}

void ModelledDriver::busy(Lane lane, Ns from, Ns to) {
  if (!options_.keep_spans) return;
  const bool on = !spans_.empty() && spans_.back().lane == lane && spans_.back().end == from;
  if (on) {
    spans_.back().end = to;
  } else {
    spans_.push_back({lane, from, to});
  }
}

Status ModelledDriver::copy_in(Addr to, const void*, Bytes size, Stream stream) {
  each_key(to, size, [this](std::uint64_t key) { changed_.erase(key); });
  advance(from_us(options_.copy_call_us));
  copy(Lane::kIn, size, stream);
  return {};
}

Status ModelledDriver::copy_out(void*, Addr, Bytes size, Stream stream) {
  advance(from_us(options_.copy_call_us));
  copy(Lane::kOut, size, stream);
  return {};
}

Status ModelledDriver::copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint,
                                        Stream stream) {
  PENSTOCK_TRY(check_fingerprint(to, size, fingerprint));
  advance(from_us(options_.digest_call_us));
  bool different = fingerprint->valid == 0;
  each_key(from, size,
           [&](std::uint64_t key) { different = changed_.erase(key) > 0 || different; });
  hold(stream, end_of(stream) + device_time(size));
  if (!different) return {};
  fingerprint->valid = 1;
  ++fingerprint->copies;
  copy(Lane::kOut, size, stream);
  return {};
}

Status ModelledDriver::copy_within(Addr, Addr, Bytes size, Stream stream) {
  hold(stream, end_of(stream) + device_time(2 * size));
  return {};
}

Status ModelledDriver::fill(Addr, std::uint8_t, Bytes size, Stream stream) {
  hold(stream, end_of(stream) + device_time(size));
  return {};
}

}  // namespace penstock::driver
