// SPDX-License-Identifier: Apache-2.0
#include "lab/machines/metadata_driver.hpp"

#include <algorithm>
#include <bit>

#include "driver/text.hpp"

namespace penstock::driver {
namespace {

// Far from small numbers and from anything that could be a host pointer of this process.
constexpr Addr kFirstAddress = Addr{1} << 44;
constexpr Addr kEnd = kFirstAddress + (Addr{1} << 47);  // as many as on a GPU

}  // namespace

Status MetadataDriver::check(const MetadataDriverOptions& options) {
  if (std::has_single_bit(options.granularity) && options.granularity >= 4 * kKiB) return {};
  return {Code::kInvalidArgument, text("a granularity of ", size_text(options.granularity),
                                       "; it must be a power of two from 4 KiB on")};
}

Result<std::unique_ptr<MetadataDriver>> MetadataDriver::open(const MetadataDriverOptions& options) {
  PENSTOCK_TRY(check(options));
  return std::unique_ptr<MetadataDriver>(new MetadataDriver(options));
}

MetadataDriver::MetadataDriver(const MetadataDriverOptions& options)
    : options_(options), ledger_(options.granularity), next_(kFirstAddress) {
  info_.name = "metadata";
  info_.total = options.capacity;
  info_.granularity = options.granularity;
  info_.virtual_memory = true;
  info_.emulated = true;
}

Status MetadataDriver::no_bytes() {
  return {Code::kUnsupported, "a driver without memory has no bytes to copy or to share"};
}

DriverCalls MetadataDriver::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

double cost_us(const DriverCalls& calls, const DriverCosts& costs) {
  return static_cast<double>(calls.create) * costs.create_us +
         static_cast<double>(calls.map) * costs.map_us +
         static_cast<double>(calls.accessed) * costs.set_access_us +
         static_cast<double>(calls.unmapped) * costs.unmap_us +
         static_cast<double>(calls.release) * costs.release_us;
}

double MetadataDriver::modelled_us() const { return cost_us(calls(), options_.costs); }

Bytes MetadataDriver::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

Bytes MetadataDriver::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

LiveCounts MetadataDriver::live() const {
  std::lock_guard lock(mutex_);
  LiveCounts live;
  ledger_.count_live(live);
  live.streams = streams_.load();
  live.events = events_.load();
  return live;
}

Result<MemoryInfo> MetadataDriver::memory_info() {
  std::lock_guard lock(mutex_);
  return MemoryInfo{options_.capacity - used_, options_.capacity};
}

Result<Addr> MetadataDriver::reserve(Bytes size) {
  std::lock_guard lock(mutex_);
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
  ++calls_.reserve;
  return address;
}

Status MetadataDriver::unreserve(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  PENSTOCK_TRY(ledger_.check_range(address, size));
  ledger_.drop_range(address);
  spare_ranges_[size].push_back(address);
  ++calls_.unreserve;
  return {};
}

Result<Chunk> MetadataDriver::create_chunk(Bytes size, Place place) {
  if (place != Place::kDevice) return no_bytes();
  std::lock_guard lock(mutex_);
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

void MetadataDriver::give_back(const std::vector<Ledger::ChunkEntry>& chunks) {
  for (const Ledger::ChunkEntry& chunk : chunks) used_ -= chunk.size;
}

Status MetadataDriver::release_chunk(Chunk chunk) {
  std::lock_guard lock(mutex_);
  PENSTOCK_TRY(ledger_.check_chunk("release_chunk", chunk).status());
  give_back(ledger_.release(chunk));
  ++calls_.release;
  return {};
}

Status MetadataDriver::map(Addr address, Bytes size, Chunk chunk) {
  std::lock_guard lock(mutex_);
  PENSTOCK_TRY(ledger_.check_map(address, size, chunk).status());
  ledger_.add_mapping(address, size, chunk);
  ++calls_.map;
  return {};
}

Status MetadataDriver::unmap(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  std::int64_t mappings = 0;
  PENSTOCK_TRY(ledger_.check_mapped("unmap", address, size, &mappings));
  ++calls_.unmap;
  calls_.unmapped += mappings;
  give_back(ledger_.drop_mappings(address, size));
  return {};
}

Status MetadataDriver::set_access(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  std::int64_t mappings = 0;
  PENSTOCK_TRY(ledger_.check_mapped("set_access", address, size, &mappings));
  ++calls_.set_access;
  calls_.accessed += mappings;
  return {};
}

Result<Stream> MetadataDriver::create_stream() {
  streams_.fetch_add(1, std::memory_order_relaxed);
  return Stream{next_stream_.fetch_add(1, std::memory_order_relaxed)};
}

Status MetadataDriver::destroy_stream(Stream) {
  streams_.fetch_sub(1, std::memory_order_relaxed);
  return {};
}

Result<Event> MetadataDriver::create_event(bool) {
  events_.fetch_add(1, std::memory_order_relaxed);
  return Event{next_event_.fetch_add(1, std::memory_order_relaxed)};
}

Status MetadataDriver::destroy_event(Event) {
  events_.fetch_sub(1, std::memory_order_relaxed);
  return {};
}

}  // namespace penstock::driver
