// SPDX-License-Identifier: Apache-2.0
#include "driver/metadata_driver.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "driver/text.hpp"

namespace penstock::driver {
namespace {

// Far from small numbers and from anything that could be a host pointer of this process.
constexpr Addr kFirstAddress = Addr{1} << 44;
constexpr Addr kAddresses = Addr{1} << 47;  // how many there are, as on a GPU

}  // namespace

Result<std::unique_ptr<MetadataDriver>> MetadataDriver::open(const MetadataDriverOptions& options) {
  if (!std::has_single_bit(options.granularity) || options.granularity < 4 * kKiB) {
    return Status(Code::kInvalidArgument, text("a granularity of ", size_text(options.granularity),
                                               "; it must be a power of two from 4 KiB on"));
  }
  return std::unique_ptr<MetadataDriver>(new MetadataDriver(options));
}

MetadataDriver::MetadataDriver(const MetadataDriverOptions& options)
    : options_(options), shift_(std::countr_zero(options.granularity)) {
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

double MetadataDriver::modelled_us() const {
  std::lock_guard lock(mutex_);
  const DriverCosts& cost = options_.costs;
  return static_cast<double>(calls_.create) * cost.create_us +
         static_cast<double>(calls_.map) * cost.map_us +
         static_cast<double>(calls_.accessed) * cost.set_access_us +
         static_cast<double>(calls_.unmapped) * cost.unmap_us +
         static_cast<double>(calls_.release) * cost.release_us;
}

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
  LiveCounts live = live_;
  live.streams = streams_.load();
  live.events = events_.load();
  return live;
}

Result<MemoryInfo> MetadataDriver::memory_info() {
  std::lock_guard lock(mutex_);
  return MemoryInfo{options_.capacity - used_, options_.capacity};
}

bool MetadataDriver::aligned(Addr address, Bytes size) const {
  const Bytes mask = options_.granularity - 1;
  return size > 0 && ((size | address) & mask) == 0 && address >= kFirstAddress &&
         size <= kAddresses && address - kFirstAddress <= kAddresses - size;
}

MetadataDriver::Granule& MetadataDriver::at(std::uint64_t granule) {
  const std::uint64_t leaf = granule >> kLeafShift;
  if (leaf >= leaves_.size()) leaves_.resize(leaf + 1);
  if (!leaves_[leaf]) leaves_[leaf] = std::make_unique<std::array<Granule, kLeaf>>();
  return (*leaves_[leaf])[granule & (kLeaf - 1)];
}

MetadataDriver::Granule MetadataDriver::look(std::uint64_t granule) const {
  const std::uint64_t leaf = granule >> kLeafShift;
  if (leaf >= leaves_.size() || !leaves_[leaf]) return kOutside;
  return (*leaves_[leaf])[granule & (kLeaf - 1)];
}

Result<Addr> MetadataDriver::reserve(Bytes size) {
  if (!aligned(kFirstAddress, size)) {
    return Status(Code::kInvalidArgument,
                  text("reserve: ", size_text(size), " is no multiple of the granularity, ",
                       size_text(options_.granularity)));
  }
  std::lock_guard lock(mutex_);
  Addr offset = 0;
  if (auto& spare = spare_ranges_[size]; !spare.empty()) {
    offset = spare.back();
    spare.pop_back();
  } else {
    // One granule stays unused between ranges, so that nothing ever crosses from one to the next.
    if (kAddresses - next_ < size + options_.granularity) {
      return Status(Code::kOutOfMemory,
                    text("reserve: no ", size_text(size), " of contiguous address space left"));
    }
    offset = next_;
    next_ += size + options_.granularity;
  }
  const std::uint64_t first = offset >> shift_;
  for (std::uint64_t i = 0; i < size >> shift_; ++i) at(first + i) = kReserved;
  ranges_.emplace(kFirstAddress + offset, size);
  ++calls_.reserve;
  ++live_.ranges;
  return kFirstAddress + offset;
}

Status MetadataDriver::unreserve(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second != size) {
    return {Code::kInvalidArgument,
            text("unreserve: no range of ", span_text(address, size), " was reserved")};
  }
  const std::uint64_t first = (address - kFirstAddress) >> shift_;
  const std::uint64_t count = size >> shift_;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (look(first + i) != kReserved) {
      return {Code::kInvalidArgument,
              text("unreserve: ", span_text(address, size), " still holds a mapping")};
    }
  }
  for (std::uint64_t i = 0; i < count; ++i) at(first + i) = kOutside;
  ranges_.erase(range);
  spare_ranges_[size].push_back(address - kFirstAddress);
  ++calls_.unreserve;
  --live_.ranges;
  return {};
}

Result<Chunk> MetadataDriver::create_chunk(Bytes size, Place place) {
  if (place != Place::kDevice) return no_bytes();
  if (!aligned(kFirstAddress, size)) {
    return Status(Code::kInvalidArgument,
                  text("create_chunk: ", size_text(size), " is no multiple of the granularity, ",
                       size_text(options_.granularity)));
  }
  std::lock_guard lock(mutex_);
  if (size > options_.capacity - used_) {
    return Status(Code::kOutOfMemory,
                  text("create_chunk: ", size_text(size), " do not fit: ", size_text(used_), " of ",
                       size_text(options_.capacity), " are in use"));
  }
  std::uint32_t index = 0;
  if (!spare_chunks_.empty()) {
    index = spare_chunks_.back();
    spare_chunks_.pop_back();
  } else {
    index = static_cast<std::uint32_t>(chunks_.size());
    if (index >= std::numeric_limits<Granule>::max() >> kChunkShift) {
      return Status(Code::kHostOutOfMemory, "create_chunk: more chunks than can be counted");
    }
    chunks_.emplace_back();
  }
  chunks_[index] = {size, 0, true};
  used_ += size;
  peak_ = std::max(peak_, used_);
  ++calls_.create;
  ++live_.chunks;
  return Chunk{index + std::uint64_t{1}};
}

void MetadataDriver::drop_if_unused(std::uint32_t index) {
  const ChunkState& chunk = chunks_[index];
  if (chunk.held || chunk.mappings > 0) return;
  used_ -= chunk.size;
  spare_chunks_.push_back(index);
}

Status MetadataDriver::release_chunk(Chunk chunk) {
  std::lock_guard lock(mutex_);
  const auto number = static_cast<std::uint64_t>(chunk);
  if (number == 0 || number > chunks_.size() || !chunks_[number - 1].held) {
    return {Code::kInvalidArgument, text("release_chunk: there is no chunk ", number)};
  }
  const auto index = static_cast<std::uint32_t>(number - 1);
  chunks_[index].held = false;
  drop_if_unused(index);
  ++calls_.release;
  --live_.chunks;
  return {};
}

Status MetadataDriver::map(Addr address, Bytes size, Chunk chunk) {
  std::lock_guard lock(mutex_);
  const auto number = static_cast<std::uint64_t>(chunk);
  if (number == 0 || number > chunks_.size() || !chunks_[number - 1].held) {
    return {Code::kInvalidArgument, text("map: there is no chunk ", number)};
  }
  if (!aligned(address, size) || chunks_[number - 1].size != size) {
    return {Code::kInvalidArgument, text("map: ", span_text(address, size), " is not the place of ",
                                         "a whole chunk of ", size_text(chunks_[number - 1].size))};
  }
  const std::uint64_t first = (address - kFirstAddress) >> shift_;
  const std::uint64_t count = size >> shift_;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (look(first + i) != kReserved) {
      return {Code::kInvalidArgument,
              text("map: ", span_text(address, size), " is mapped already, or not reserved")};
    }
  }
  const auto value = static_cast<Granule>(number << kChunkShift);
  for (std::uint64_t i = 0; i < count; ++i) at(first + i) = value | (i == 0 ? kFirst : 0);
  ++chunks_[number - 1].mappings;
  ++calls_.map;
  ++live_.mappings;
  return {};
}

Result<std::int64_t> MetadataDriver::whole_mappings(const char* call, Addr address,
                                                    Bytes size) const {
  const std::uint64_t first = (address - kFirstAddress) >> shift_;
  const std::uint64_t end = first + (size >> shift_);
  std::uint64_t place = first;
  std::int64_t mappings = 0;
  if (aligned(address, size)) {
    for (; place < end; ++mappings) {
      const Granule granule = look(place);
      if (!mapped(granule) || (granule & kFirst) == 0) break;
      place += bytes(granule) >> shift_;
    }
    if (place == end) return mappings;
  }
  return Status(Code::kInvalidArgument,
                text(call, ": ", span_text(address, size), " is not made of whole mappings"));
}

Status MetadataDriver::unmap(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  PENSTOCK_ASSIGN(const std::int64_t mappings, whole_mappings("unmap", address, size));
  const std::uint64_t first = (address - kFirstAddress) >> shift_;
  for (std::uint64_t i = 0; i < size >> shift_; ++i) {
    Granule& granule = at(first + i);
    if ((granule & kFirst) != 0) {
      const std::uint32_t index = chunk_of(granule);
      --chunks_[index].mappings;
      --live_.mappings;
      drop_if_unused(index);
    }
    granule = kReserved;
  }
  ++calls_.unmap;
  calls_.unmapped += mappings;
  return {};
}

Status MetadataDriver::set_access(Addr address, Bytes size) {
  std::lock_guard lock(mutex_);
  PENSTOCK_ASSIGN(const std::int64_t mappings, whole_mappings("set_access", address, size));
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
