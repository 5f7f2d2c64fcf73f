// SPDX-License-Identifier: Apache-2.0
#include "lab/machines/modelled_driver.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "driver/text.hpp"

namespace penstock::driver {

Result<std::unique_ptr<ModelledDriver>> ModelledDriver::open(const ModelledDriverOptions& options) {
  if (!(options.link_gb_per_s > 0)) {
    return Status(Code::kInvalidArgument,
                  text("a link of ", options.link_gb_per_s, " GB/s; it must be above zero"));
  }
  PENSTOCK_TRY(check({options.capacity, options.granularity, options.costs}));
  return std::unique_ptr<ModelledDriver>(new ModelledDriver(options));
}

ModelledDriver::ModelledDriver(const ModelledDriverOptions& options)
    : MetadataDriver({options.capacity, options.granularity, options.costs}),
      options_(options),
      in_(options.link_gb_per_s, from_us(options.copy_latency_us)),
      out_(options.link_gb_per_s, from_us(options.copy_latency_us)),
      unit_(options.granularity) {
  info_.name = "modelled";
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
}

std::uint64_t ModelledDriver::key_of(Addr address) const {
  const auto behind = chunks_behind_.find(address / info_.granularity);
  if (behind == chunks_behind_.end()) return address / unit_;
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(behind->second);
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

LiveCounts ModelledDriver::live() const {
  LiveCounts live = MetadataDriver::live();
  live.host_allocations = static_cast<std::int64_t>(host_.size());
  return live;
}

Result<Chunk> ModelledDriver::create_chunk(Bytes size, Place place) {
  advance(from_us(options_.costs.create_us));
  return MetadataDriver::create_chunk(size, place);
}

Status ModelledDriver::map(Addr address, Bytes size, Chunk chunk) {
  advance(from_us(options_.costs.map_us));
  PENSTOCK_TRY(MetadataDriver::map(address, size, chunk));
  for (Bytes i = 0; i < size / info_.granularity; ++i) {
    chunks_behind_[address / info_.granularity + i] = chunk;
  }
  return {};
}

Status ModelledDriver::unmap(Addr address, Bytes size) {
  advance(unmapping_time());
  PENSTOCK_TRY(MetadataDriver::unmap(address, size));
  for (Bytes i = 0; i < size / info_.granularity; ++i) {
    chunks_behind_.erase(address / info_.granularity + i);
  }
  return {};
}

Status ModelledDriver::set_access(Addr address, Bytes size) {
  advance(access_time());
  return MetadataDriver::set_access(address, size);
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
  PENSTOCK_ASSIGN(const Stream stream, MetadataDriver::create_stream());
  end(stream) = now_;
  return stream;
}

Status ModelledDriver::destroy_stream(Stream stream) {
  streams_.erase(static_cast<std::uint64_t>(stream));
  return MetadataDriver::destroy_stream(stream);
}

Status ModelledDriver::synchronize(Stream stream) {
  wait_until(end(stream));
  return {};
}

Status ModelledDriver::synchronize_device() {
  for (const auto& [stream, until] : streams_) wait_until(until);
  return {};
}

Result<Event> ModelledDriver::create_event(bool timing) {
  PENSTOCK_TRY(MetadataDriver::create_event(timing).status());
  if (!spare_events_.empty()) {
    const Event event{spare_events_.back()};
    spare_events_.pop_back();
    return event;
  }
  events_.push_back(0);
  return Event{events_.size()};
}

Status ModelledDriver::destroy_event(Event event) {
  events_[static_cast<std::uint64_t>(event) - 1] = 0;
  spare_events_.push_back(static_cast<std::uint64_t>(event));
  return MetadataDriver::destroy_event(event);
}

Status ModelledDriver::record(Event event, Stream stream) {
  events_[static_cast<std::uint64_t>(event) - 1] = end_of(stream);
  return {};
}

Status ModelledDriver::wait(Stream stream, Event event) {
  hold(stream, events_[static_cast<std::uint64_t>(event) - 1]);
  return {};
}

Status ModelledDriver::query(Event event) {
  if (events_[static_cast<std::uint64_t>(event) - 1] <= now_) return {};
  return {Code::kNotReady, "the event has not happened yet"};
}

Status ModelledDriver::synchronize(Event event) {
  wait_until(events_[static_cast<std::uint64_t>(event) - 1]);
  return {};
}

Result<float> ModelledDriver::elapsed_ms(Event from, Event to) {
  const Ns begin = events_[static_cast<std::uint64_t>(from) - 1];
  return static_cast<float>(events_[static_cast<std::uint64_t>(to) - 1] - begin) / 1e6F;
}

void ModelledDriver::copy(ModelledLink& link, Bytes size, Stream stream) {
  if (size == 0) return;
  link.forget_before(now_);
  end(stream) = link.copy(end_of(stream), size);
}

Status ModelledDriver::copy_in(Addr to, const void*, Bytes size, Stream stream) {
  each_key(to, size, [this](std::uint64_t key) { changed_.erase(key); });
  advance(from_us(options_.copy_call_us));
  copy(in_, size, stream);
  return {};
}

Status ModelledDriver::copy_out(void*, Addr, Bytes size, Stream stream) {
  advance(from_us(options_.copy_call_us));
  copy(out_, size, stream);
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
  copy(out_, size, stream);
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
