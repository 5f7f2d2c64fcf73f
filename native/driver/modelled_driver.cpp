// SPDX-License-Identifier: Apache-2.0
#include "driver/modelled_driver.hpp"

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
  PENSTOCK_ASSIGN(auto books, MetadataDriver::open({.capacity = options.capacity,
                                                    .granularity = options.granularity,
                                                    .costs = options.costs}));
  return std::unique_ptr<ModelledDriver>(new ModelledDriver(options, std::move(books)));
}

ModelledDriver::ModelledDriver(const ModelledDriverOptions& options,
                               std::unique_ptr<MetadataDriver> books)
    : options_(options),
      books_(std::move(books)),
      info_(books_->info()),
      in_(options.link_gb_per_s, from_us(options.copy_latency_us)),
      out_(options.link_gb_per_s, from_us(options.copy_latency_us)),
      unit_(options.granularity) {
  info_.name = "modelled";
}

ModelledDriver::~ModelledDriver() {
  for (const auto& [pointer, size] : host_) munmap(pointer, size);
}

Status ModelledDriver::unsupported() {
  return {Code::kUnsupported, "a driver without memory has no managed memory, and no neighbours"};
}

Ns ModelledDriver::device_time(Bytes bytes) const {
  return static_cast<Ns>(static_cast<double>(bytes) / options_.device_gb_per_s);
}

void ModelledDriver::launch(Stream stream, Ns duration) {
  kernels_end_ = std::max({kernels_end_, end(stream), now_}) + duration;
  end(stream) = kernels_end_;
}

void ModelledDriver::changed(Addr address, Bytes size) {
  if (size == 0) return;
  for (std::uint64_t i = address / unit_; i <= (address + size - 1) / unit_; ++i) {
    changed_.insert(i);
  }
}

LiveCounts ModelledDriver::live() const {
  LiveCounts live = books_->live();
  live.host_allocations = static_cast<std::int64_t>(host_.size());
  return live;
}

Result<Chunk> ModelledDriver::create_chunk(Bytes size, Place place) {
  advance(from_us(options_.costs.create_us));
  return books_->create_chunk(size, place);
}

Status ModelledDriver::map(Addr address, Bytes size, Chunk chunk) {
  advance(from_us(options_.costs.map_us));
  return books_->map(address, size, chunk);
}

Status ModelledDriver::unmap(Addr address, Bytes size) {
  advance(unmapping_time());
  return books_->unmap(address, size);
}

Status ModelledDriver::set_access(Addr address, Bytes size) {
  advance(access_time());
  return books_->set_access(address, size);
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
  return books_->create_stream().ok() ? Result<Stream>(stream) : unsupported();
}

Status ModelledDriver::destroy_stream(Stream stream) {
  streams_.erase(static_cast<std::uint64_t>(stream));
  return books_->destroy_stream(stream);
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
  PENSTOCK_TRY(books_->create_event(timing).status());
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
  return books_->destroy_event(event);
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

Status ModelledDriver::copy_in(Addr, const void*, Bytes size, Stream stream) {
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
  for (std::uint64_t i = from / unit_; i <= (from + size - 1) / unit_; ++i) {
    different = changed_.erase(i) > 0 || different;
  }
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
