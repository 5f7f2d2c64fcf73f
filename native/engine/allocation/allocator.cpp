// SPDX-License-Identifier: Apache-2.0
// Allocation and release; what happens when memory is short is in allocator_slow.cpp, what is told
// about it in allocator_report.cpp.
#include "engine/allocation/allocator.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace penstock::engine {

namespace {

constexpr Bytes kMostBytes = Bytes{1} << 60;  // of a request

Status check_options(const driver::DeviceInfo& info, const AllocatorOptions& options) {
  if (!info.virtual_memory) {
    return Status(Code::kUnsupported, info.name,
                  " has no virtual memory management, which the stitching allocator needs");
  }
  const Bytes chunk = options.packing.smallest_chunk;
  if (!std::has_single_bit(chunk) || chunk % info.granularity != 0 ||
      !std::has_single_bit(options.packing.largest_chunk) ||
      options.packing.largest_chunk < chunk) {
    return invalid("chunks of ", size_text(chunk), " cannot be: a power of two, and a multiple of ",
                   size_text(info.granularity), ", is needed");
  }
  if (options.budget != 0 && options.budget < chunk) {
    return invalid("a budget of ", size_text(options.budget), " does not hold one chunk of ",
                   size_text(chunk));
  }
  if (options.packing.reuse_limit < 1.0) return invalid("the reuse limit must be at least 1");
  return {};
}

}  // namespace

Result<std::unique_ptr<Allocator>> Allocator::create(driver::Driver& driver,
                                                     const AllocatorOptions& options) {
  PENSTOCK_TRY(check_options(driver.info(), options));
  std::unique_ptr<Allocator> allocator(new Allocator(driver, options));
  AllocatorOptions& own = allocator->options_;
  if (own.budget == 0) own.budget = driver.info().total;
  PENSTOCK_TRY(allocator->make_pool({}).status());
  if (own.small_bytes > 0) PENSTOCK_TRY(allocator->make_pool({}).status());
  for (Pool& pool : allocator->pools_) pool.common = true;
  return allocator;
}

Allocator::~Allocator() {
  const std::lock_guard lock(mutex_);
  // There may be no host memory for an event.
  if (!guarded([this] { return clock_.synchronize(); }).ok()) (void)driver_.synchronize_device();
  for (const LastUse& use : pending_) clock_.give_back(use.event);
  pools_.clear();
}

Result<Addr> Allocator::allocate(Bytes size, driver::Stream stream) {
  const std::uint64_t context = context_of(AllocationEvent::kAlloc);
  const std::lock_guard lock(mutex_);
  blocks_.make_room();
  if (!pending_.empty()) PENSTOCK_TRY(collect(false));
  if (size > kMostBytes) return out_of_memory(size);  // rounding up could make it nothing
  const std::uint32_t index = pool_for(stream, size);
  Pool& pool = pools_[index];
  PENSTOCK_ASSIGN(const std::uint16_t tag, clock_.tag(stream));
  const packing::Request request{.bytes = size, .tag = tag};
  packing::BlockId id = pool.memory->packer().place_now(request);
  if (id == packing::kNone) {
    PENSTOCK_ASSIGN(id, place_slowly(pool, request));
  } else if (pool.memory->packer().block(id).range != packing::kNone) {
    ++stats_.stitch_hits;
  }
  const Addr address = pool.memory->address_of(id);
  blocks_.insert(address, {index, id});
  const Bytes bytes = pool.memory->packer().block(id).bytes;
  Undo release([&] {
    blocks_.erase(address);
    pool.memory->packer().release(id, clock_.freed(tag, bytes, capturing()));
  });
  if (options_.observer != nullptr) options_.observer->allocated(address, bytes);
  release.keep();
  stats_.requested_bytes.add(size, size);
  stats_.allocated_bytes.add(bytes, size);
  stats_.active_bytes.add(bytes, size);
  stats_.allocations.add(1, size);
  stats_.active_blocks.add(1, size);
  note(AllocationEvent::kAlloc, address, bytes, size, stream, pool.id, context);
  return address;
}

Result<Allocator::Place*> Allocator::live(Addr address) {
  Place* const place = blocks_.find(address);
  if (place != nullptr && !(awaited_.size() > 0 && awaited_.contains(address))) return place;
  return invalid("there is no block at ", address, place == nullptr ? "" : ": it was freed before");
}

Status Allocator::free(Addr address) {
  const std::uint64_t context = context_of(AllocationEvent::kFreeRequested);
  const std::lock_guard lock(mutex_);
  PENSTOCK_ASSIGN(const Place* const place, live(address));
  const Pool& pool = pools_[place->pool];
  const packing::Block& block = pool.memory->packer().block(place->block);
  const bool used = !users_.empty() && users_.contains(address);
  const bool pinned = !pins_.empty() && pins_.contains(address);
  if (used) room_for(deferred_, deferred_.size() + 1);
  if (used || pinned) awaited_.try_emplace(address, 0);
  stats_.allocated_bytes.take(block.bytes, block.requested);
  stats_.allocations.take(1, block.requested);
  note(AllocationEvent::kFreeRequested, address, block.bytes, block.requested,
       clock_.stream(block.tag), pool.id, context);
  if (used) return defer(address);
  if (!pinned) complete(address);
  return {};
}

// The block's bytes go back to its pool.
void Allocator::complete(Addr address) {
  const Place place = *blocks_.find(address);
  Pool& pool = pools_[place.pool];
  const packing::Block block = pool.memory->packer().block(place.block);
  blocks_.erase(address);
  if (options_.observer != nullptr) options_.observer->freed(address);
  stats_.requested_bytes.take(block.requested, block.requested);
  stats_.active_bytes.take(block.bytes, block.requested);
  stats_.active_blocks.take(1, block.requested);
  const std::uint32_t epoch = clock_.freed(block.tag, block.bytes, capturing());
  pool.memory->packer().release(place.block, epoch);
  note(AllocationEvent::kFreeCompleted, address, block.bytes, block.requested,
       clock_.stream(block.tag), pool.id);
}

Status Allocator::record_stream(Addr address, driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_ASSIGN(const Place* const place, live(address));
  PENSTOCK_ASSIGN(const std::uint16_t tag, clock_.tag(stream));
  if (tag == pools_[place->pool].memory->packer().block(place->block).tag) return {};
  auto& users = users_.try_emplace(address, 1, tag).first->second;  // never there without a user
  if (std::ranges::find(users, tag) == users.end()) users.push_back(tag);
  return {};
}

Status Allocator::pin(Addr address) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(live(address).status());
  ++pins_[address];
  return {};
}

void Allocator::unpin(Addr address) {
  const std::lock_guard lock(mutex_);
  const auto found = pins_.find(address);
  if (found == pins_.end() || --found->second > 0) return;
  pins_.erase(found);
  complete_if_unused(address);
}

Status Allocator::stream_gone(driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  return clock_.stream_gone(stream);
}

// A freed block goes when no stream uses it any more and nobody has it pinned.
void Allocator::complete_if_unused(Addr address) {
  const auto found = awaited_.find(address);
  if (found == awaited_.end() || found->second > 0 || users_.contains(address) ||
      pins_.contains(address)) {
    return;
  }
  awaited_.erase(found);
  complete(address);
}

// Other streams use the block: it is free after an event of each.
Status Allocator::defer(Addr address) {
  if (capturing()) {
    deferred_.push_back(address);
    return {};
  }
  std::vector<LastUse> uses;
  Status status = guarded([&]() -> Status {
    for (const std::uint16_t tag : users_[address]) {
      uses.push_back({{}, address, tag});
      PENSTOCK_ASSIGN(uses.back().event, clock_.record(tag));
    }
    pending_.insert(pending_.end(), uses.begin(), uses.end());
    return {};
  });
  if (!status.ok()) {
    for (const LastUse& use : uses) {
      if (use.event != driver::Event{}) clock_.give_back(use.event);
    }
    deferred_.push_back(address);
    return status.code() == Code::kNotReady ? Status{} : status;
  }
  awaited_[address] += static_cast<int>(uses.size());
  users_.erase(address);
  return {};
}

// A block whose last use still cannot be known stays: another caller's request must not fail by it.
void Allocator::defer_again() {
  std::vector<Addr> again;
  again.reserve(deferred_.size());
  again.swap(deferred_);
  for (const Addr address : again) {
    if (users_.contains(address)) (void)defer(address);
  }
}

// Completes blocks whose last uses are over; `wait`: all of them.
Status Allocator::collect(bool wait) {
  if (capturing()) return {};  // an event must not be asked for then
  if (wait) defer_again();
  while (!pending_.empty()) {
    const LastUse use = pending_.front();
    const Status status = wait ? driver_.synchronize(use.event) : driver_.query(use.event);
    if (status.code() == Code::kNotReady) break;
    pending_.pop_front();
    --awaited_[use.address];
    if (status.ok()) {
      clock_.give_back(use.event);
    } else {  // it says nothing any more: another one will be recorded
      (void)driver_.destroy_event(use.event);
      users_[use.address].push_back(use.tag);
      deferred_.push_back(use.address);
    }
    complete_if_unused(use.address);
  }
  return {};
}

Status Allocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  if (capturing()) return {};
  PENSTOCK_TRY(collect(true));
  return trim();
}

Status Allocator::set_budget(Bytes budget) {
  const std::lock_guard lock(mutex_);
  const Bytes wanted = budget == 0 ? driver_.info().total : budget;
  if (wanted < options_.packing.smallest_chunk) {
    return invalid("a budget of ", size_text(wanted), " does not hold one chunk of ",
                   size_text(options_.packing.smallest_chunk));
  }
  options_.budget = wanted;
  return {};
}

Result<std::uint32_t> Allocator::make_pool(PoolId id) {
  // Twice the memory, so that vacancies do not force growth into pieces.
  const Bytes line = options_.line_bytes == 0 ? 2 * driver_.info().total : options_.line_bytes;
  const std::uint64_t chunks = divide_up(line, options_.packing.smallest_chunk);
  PENSTOCK_ASSIGN(auto memory, MemoryPool::create(driver_, options_.packing, chunks));
  for (std::size_t i = 1; i < pools_.size(); ++i) {
    if (pools_[i].memory != nullptr) continue;
    pools_[i] = {.id = id, .memory = std::move(memory)};
    return static_cast<std::uint32_t>(i);
  }
  pools_.push_back({.id = id, .memory = std::move(memory)});
  return static_cast<std::uint32_t>(pools_.size() - 1);
}

Allocator::Pool* Allocator::find_pool(PoolId id) {
  for (std::size_t i = 1; i < pools_.size(); ++i) {
    if (pools_[i].memory != nullptr && !pools_[i].common && pools_[i].users > 0 &&
        pools_[i].id == id) {
      return &pools_[i];
    }
  }
  return nullptr;
}

std::uint32_t Allocator::pool_for(driver::Stream stream, Bytes size) {
  for (const Capture& capture : captures_) {
    if (capture.matches && !capture.matches(stream)) continue;
    if (const Pool* pool = find_pool(capture.id)) {
      return static_cast<std::uint32_t>(pool - pools_.data());
    }
  }
  return size < options_.small_bytes ? 1u : 0u;
}

Status Allocator::begin_pool(PoolId id, StreamFilter matches) {
  const std::lock_guard lock(mutex_);
  if (id == PoolId{}) return invalid("pool {0, 0} is everyone's");
  if (std::ranges::any_of(captures_, [&](const Capture& each) { return each.id == id; })) {
    return invalid("pool ", id.high, ", ", id.low, " is in use already");
  }
  if (Pool* pool = find_pool(id)) {
    ++pool->users;
  } else {
    PENSTOCK_TRY(make_pool(id).status());
  }
  captures_.push_back({id, std::move(matches)});
  return {};
}

Status Allocator::end_pool(PoolId id) {
  const std::lock_guard lock(mutex_);
  if (std::erase_if(captures_, [&](const Capture& each) { return each.id == id; }) == 0) {
    return invalid("pool ", id.high, ", ", id.low, " was not begun");
  }
  if (!capturing()) defer_again();
  return {};
}

Status Allocator::release_pool(PoolId id) {
  const std::lock_guard lock(mutex_);
  Pool* pool = find_pool(id);
  if (pool == nullptr) return invalid("there is no pool ", id.high, ", ", id.low);
  --pool->users;  // its memory goes when memory is short, or the cache is emptied
  return {};
}

}  // namespace penstock::engine
