// SPDX-License-Identifier: Apache-2.0
#include "engine/program.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "driver/text.hpp"

namespace penstock::engine {
namespace {

// So many pieces of work are a pause, more than a layer's worth; so many returns settle a block.
constexpr std::uint64_t kPause = 24;
constexpr std::uint32_t kSettled = 2;

// A hundred pages or more.  What comes and goes costs a mapping a page, 150 to 300 us while kernels
// run, as much as copying 8 to 16 MiB.
Bytes page_for(Bytes budget, Bytes granularity) {
  const Bytes wanted = std::bit_floor(std::max<Bytes>(budget / 192, 1));
  return std::max(granularity, std::clamp<Bytes>(wanted, 2 * kMiB, 16 * kMiB));
}

}  // namespace

Result<std::unique_ptr<Program>> Program::create(driver::Driver& device,
                                                 const ProgramOptions& options) {
  std::unique_ptr<Program> program(new Program(device, options));
  ProgramOptions& own = program->options_;
  if (own.budget == 0) own.budget = device.info().total;
  if (own.page_bytes == 0) own.page_bytes = page_for(own.budget, device.info().granularity);
  PagerOptions pager;
  pager.budget = own.budget;
  pager.chunk_bytes = own.page_bytes;
  pager.look_ahead_bytes = 8 * own.page_bytes;
  pager.max_copy_bytes = 4 * own.page_bytes;
  // Two share the link, and what is needed first comes later for it: a forward of GPT-2 XL in a
  // quarter of its memory took 47.6 ms with one stream, 49.8 and 49.1 with two (H200).
  pager.copy_streams = 1;
  pager.evicted = own.evicted;
  PENSTOCK_ASSIGN(program->pager_, Pager::create(device, pager));
  Program* const self = program.get();
  program->memory_ = std::make_unique<PagedMemory>(device, *program->pager_, own.page_bytes,
                                                   [self] { return self->start(); });
  AllocatorOptions allocator;
  allocator.budget = own.host_bytes == 0 ? 16 * kTiB : own.budget + own.host_bytes;
  allocator.line_bytes = 4 * device.info().total;
  allocator.packing.smallest_chunk = own.page_bytes;
  allocator.packing.largest_chunk = own.page_bytes;
  allocator.packing.huge_chunk = own.page_bytes;
  // Addresses are plenty, and a chunk behind two of them could not leave either.
  allocator.packing.stitch_when = policy::packing::StitchWhen::kNever;
  allocator.packing.growth_bytes = 0;
  // Small blocks come and go; in the gaps between weights they would bring those in.
  allocator.small_bytes = own.page_bytes / 4;
  allocator.observer = program.get();
  PENSTOCK_ASSIGN(program->allocator_, Allocator::create(*program->memory_, allocator));
  program->memory_->keep_what_follows();
  return program;
}

Program::~Program() {
  allocator_.reset();
  memory_.reset();
  pager_.reset();
}

Status Program::start() {
  options_.start_paging();
  PENSTOCK_TRY(device_.synchronize_device());
  const std::lock_guard lock(blocks_mutex_);
  if (pager_->paging()) return {};
  blocks_.each([this](const Block& block) { pager_->occupy(block.address, block.bytes, 1); });
  pager_->start_paging();
  return {};
}

void Program::allocated(Addr address, Bytes bytes) {
  const bool wider = address < lowest_ || address + bytes > highest_;
  {
    const std::lock_guard lock(blocks_mutex_);
    blocks_.insert(
        {.address = address, .bytes = bytes, .id = ++next_block_, .touched = announced_});
    if (options_.recorder != nullptr) options_.recorder->allocated(next_block_, bytes);
    // Before there is paging nobody asks; start() counts what there is then.
    if (pager_->paging()) pager_->occupy(address, bytes, 1);
    if (address < lowest_) lowest_ = address;
    if (address + bytes > highest_) highest_ = address + bytes;
  }
  if (wider && options_.widened) options_.widened();
  held_ += bytes;
}

void Program::freed(Addr address) {
  Block block;
  {
    const std::lock_guard lock(blocks_mutex_);
    const Block* found = blocks_.find(address);
    if (found == nullptr) return;
    block = *found;
    if (options_.recorder != nullptr) options_.recorder->freed(block.id);
    if (block.table) tables_.erase(block.id);
    blocks_.erase(address);
    if (pager_->paging()) pager_->occupy(block.address, block.bytes, -1);
  }
  held_ -= block.bytes;
}

Program::Block Program::block_of(Addr address) {
  const std::lock_guard lock(blocks_mutex_);
  const Block* found = blocks_.find(address);
  return found == nullptr ? Block{} : *found;
}

std::pair<Addr, Addr> Program::window() const {
  const Addr begin = lowest_;
  const Addr end = highest_;
  return begin < end ? std::pair{begin, end} : std::pair{Addr{0}, Addr{0}};
}

void Program::touch(Block& block, const TouchedAddress& how, std::vector<Touch>& touches) {
  if (block.touched + kPause < announced_) ++block.returns;
  block.touched = announced_;
  const bool settled = block.returns >= kSettled;
  if (how.bytes == 0) {
    if (how.written) block.whole = announced_;
    touches.push_back({block.address, block.bytes, how.written, settled});
  } else {  // a copy may reach over several blocks of one range
    touches.push_back({how.address, how.bytes, how.written, settled});
  }
}

Status Program::announce(driver::Stream stream, std::span<const TouchedAddress> touched,
                         bool opaque, std::uint64_t function, WorkKind kind) {
  thread_local std::vector<Touch> touches;
  thread_local std::vector<RecordedTouch> recorded;
  thread_local std::vector<std::uint64_t> ids;
  touches.clear();
  recorded.clear();
  ids.clear();
  {
    const std::lock_guard lock(blocks_mutex_);
    ++announced_;
    for (const TouchedAddress& each : touched) {
      Block* block = blocks_.find(each.address);
      if (block == nullptr) continue;  // a number that looks like an address
      if (block->whole == announced_) continue;
      touch(*block, each, touches);
      ids.push_back(block->id);
      if (!block->table || (kind != WorkKind::kKernel && kind != WorkKind::kGraph)) continue;
      for (const Table& table : tables_[block->id]) {
        for (const Addr address : table.addresses) {
          Block* reached = blocks_.find(address);
          if (reached == nullptr || reached->touched == announced_) continue;
          touch(*reached, {address, 0, true}, touches);
          ids.push_back(reached->id);
        }
      }
    }
    if (options_.recorder != nullptr) {
      for (std::size_t i = 0; i < touches.size(); ++i) {
        const Block* block = blocks_.find(touches[i].address);
        recorded.push_back(
            {ids[i], touches[i].address - block->address, touches[i].bytes, touches[i].written});
      }
      options_.recorder->work({static_cast<std::uint64_t>(stream), function, kind, opaque},
                              recorded);
    }
  }
  return pager_->announce(stream, touches, opaque, function);
}

void Program::hold(Addr at, Bytes bytes, std::span<const Addr> addresses) {
  const std::lock_guard lock(blocks_mutex_);
  Block* block = blocks_.find(at);
  if (block == nullptr || (addresses.empty() && !block->table)) return;
  std::vector<Table>& tables = tables_[block->id];
  // What is written over in part stays: too many addresses cost time, too few are wrong.
  std::erase_if(tables, [&](const Table& old) { return at <= old.begin && old.end <= at + bytes; });
  if (!addresses.empty()) tables.push_back({at, at + bytes, {addresses.begin(), addresses.end()}});
  block->table = !tables.empty();
  if (!block->table) tables_.erase(block->id);
}

Status Program::give_back(Bytes bytes) {
  if (!pager_->paging()) PENSTOCK_TRY(start());
  const Bytes budget = pager_->stats().budget;
  const Bytes smallest = std::max(pager_->smallest(), budget / 8);
  if (budget < smallest + bytes) {
    return {Code::kOutOfMemory,
            driver::text(driver::size_text(bytes), " more cannot be given back")};
  }
  return pager_->resize(budget - std::max(bytes, options_.page_bytes));
}

Status Program::pin(Addr address, int delta) {
  const Block block = block_of(address);
  if (block.bytes == 0) return {};
  if (options_.recorder != nullptr) options_.recorder->pinned(block.id, delta > 0);
  return pager_->pin(block.address, block.bytes, delta);
}

}  // namespace penstock::engine
