// SPDX-License-Identifier: Apache-2.0
#include "process/program.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/of_thread.hpp"
#include "driver/text.hpp"
#include "policy/residency/lending.hpp"
#include "policy/residency/page_size.hpp"

namespace penstock::engine {
namespace {

// Of what is held, where nobody knows how much the driver needs: it may be asked again.
constexpr Bytes kShareOfUnknown = 32;

std::atomic<std::uint64_t> last_pin{0};  // of all programs: none knows another's by mistake

}  // namespace

Result<std::unique_ptr<Program>> Program::create(driver::Driver& device,
                                                 const ProgramOptions& options) {
  std::unique_ptr<Program> program(new Program(device, options));
  ProgramOptions& own = program->options_;
  if (own.budget == 0) own.budget = device.info().total;
  if (own.page_bytes == 0)
    own.page_bytes = policy::residency::page_size(own.budget, device.info().granularity);
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
  std::vector<Small> smalls;
  {
    const std::lock_guard lock(blocks_mutex_);
    if (pager_->paging()) return {};
    blocks_.each([&](const Block& block) {
      pager_->occupy(block.address, block.bytes, 1);
      if (small(block)) smalls.push_back({block.address, block.id});
    });
    pager_->start_paging();
  }
  keep(smalls);
  return {};
}

// As many as a 32nd of the budget holds.  What cannot stay now is not asked about again.
void Program::keep(std::span<const Small> blocks) {
  for (const Small& each : blocks) {
    std::unique_lock lock(blocks_mutex_);
    const auto found = [&]() -> Block* {
      Block* block = blocks_.find(each.address);
      return block != nullptr && block->id == each.id && !block->kept ? block : nullptr;
    };
    Block* block = found();
    if (block == nullptr) continue;
    block->decided = true;
    const Addr page = pager_->page_around(each.address);
    if (pager_->page_around(each.address + block->bytes - 1) != page) continue;
    if (!kept_.contains(page)) {
      if ((kept_.size() + 1) * options_.page_bytes > options_.budget / 32) continue;
      lock.unlock();  // it may wait for other threads' work
      if (!pager_->pin(each.address, 1, 1).ok()) continue;
      lock.lock();
      block = found();
      if (block == nullptr || kept_.contains(page)) (void)pager_->pin(each.address, 1, -1);
      if (block == nullptr) continue;
    }
    ++kept_[page];
    block->kept = true;
  }
}

void Program::allocated(Addr address, Bytes bytes) {
  const bool wider = address < lowest_ || address + bytes > highest_;
  {
    const std::lock_guard lock(blocks_mutex_);
    blocks_.insert({.address = address, .bytes = bytes, .id = ++next_block_});
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
    if (block.stays) {
      if (options_.recorder != nullptr) options_.recorder->pinned(block.id, false);
      (void)pager_->pin(block.address, block.bytes, -1);
    }
    if (block.kept) {
      const auto page = kept_.find(pager_->page_around(block.address));
      if (--page->second == 0) {
        kept_.erase(page);
        (void)pager_->pin(block.address, 1, -1);
      }
    }
    if (options_.recorder != nullptr) options_.recorder->freed(block.id);
    if (block.table) erase_words(block.address, block.bytes);
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
  if (how.bytes == 0) {
    if (how.written) block.whole = announced_;
    touches.push_back({block.address, block.bytes, how.written});
  } else {  // a copy may reach over several blocks of one range
    touches.push_back({how.address, how.bytes, how.written});
  }
}

Status Program::announce(driver::Stream stream, std::span<const TouchedAddress> touched,
                         bool opaque, std::uint64_t function, WorkKind kind,
                         std::span<const HeldAddress> held) {
  const LaunchTimed timed(pager_->paging() ? &launch_costs_ : nullptr);
  struct Lists {
    std::vector<Touch> touches;
    std::vector<RecordedTouch> recorded;
    std::vector<std::uint64_t> ids;
    std::vector<Small> smalls;
    std::vector<const Block*> tables;  // touched by what may read addresses there
  };
  auto& [touches, recorded, ids, smalls, tables] = of_thread<Lists>();
  touches.clear();
  recorded.clear();
  ids.clear();
  smalls.clear();
  tables.clear();
  Words words;
  std::vector<Addr> away;
  const bool reads = kind == WorkKind::kKernel || kind == WorkKind::kGraph;
  bool moves = false;
  bool look = false;
  {
    const std::lock_guard lock(blocks_mutex_);
    ++announced_;
    look = lent_ > 0 && announced_ - looked_at_ >= policy::residency::kWorkBetweenLooks;
    if (look) looked_at_ = announced_;
    for (const TouchedAddress& each : touched) {
      Block* block = blocks_.find(each.address);
      if (block == nullptr) continue;  // a number that looks like an address
      if (block->whole == announced_) continue;
      touch(*block, each, touches);
      ids.push_back(block->id);
      if (small(*block) && !block->decided) smalls.push_back({block->address, block->id});
      if (block->table && reads) tables.push_back(block);
    }
    for (std::size_t next = 0; next < tables.size(); ++next) {
      const Block table = *tables[next];
      const auto end = words_.lower_bound(table.address + table.bytes);
      for (auto word = words_.lower_bound(table.address); word != end; ++word) {
        Block* reached = blocks_.find(word->second);
        if (reached == nullptr || reached->whole == announced_) continue;
        touch(*reached, {word->second, 0, true}, touches);
        ids.push_back(reached->id);
        if (reached->table) tables.push_back(reached);
      }
    }
    moves =
        (kind == WorkKind::kCopy || kind == WorkKind::kFill) && !(words_.empty() && held.empty());
    if (moves) words = carried(touched, held, away);
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
  for (const Addr address : away) PENSTOCK_TRY(stay(address));
  if (look) take_again();
  Status status = pager_->announce(stream, touches);
  if (status.code() == Code::kOutOfMemory && lent_ > 0) {  // too much was given, or for nothing
    take_again();
    status = pager_->announce(stream, touches);
  }
  if (status.code() == Code::kOutOfMemory && settle_for_less()) {
    status = pager_->announce(stream, touches);
  }
  if (moves && status.ok()) stand(touched, std::move(words));
  if (!smalls.empty() && status.ok() && pager_->paging()) keep(smalls);
  return status;
}

// The addresses that a copy brings or takes along.
Program::Words Program::carried(std::span<const TouchedAddress> touched,
                                std::span<const HeldAddress> held, std::vector<Addr>& away) const {
  Words words;
  for (std::size_t i = 0; i < touched.size(); ++i) {
    const TouchedAddress& from = touched[i];
    if (from.written) continue;
    const TouchedAddress to = i + 1 < touched.size() ? touched[i + 1] : TouchedAddress{};
    const bool alike = to.written && to.bytes == from.bytes && !from.gaps && !to.gaps;
    const auto end = words_.lower_bound(from.address + from.bytes);
    for (auto word = words_.lower_bound(from.address); word != end; ++word) {
      if (from.away) away.push_back(word->second);
      if (alike) words[to.address + (word->first - from.address)] = word->second;
    }
  }
  // Last: in a batch, the next address may be another copy's, which brings these.
  for (const HeldAddress& each : held) words[each.at] = each.address;
  return words;
}

// Where it writes, these stand and no others.  Between rows others may: too many cost time, too few
// are wrong.  Takes no memory, since the work has been announced.
void Program::stand(std::span<const TouchedAddress> touched, Words words) {
  const std::lock_guard lock(blocks_mutex_);
  for (const TouchedAddress& each : touched) {
    if (each.written && !each.gaps) erase_words(each.address, each.bytes);
  }
  std::erase_if(words, [this](const auto& word) {
    Block* block = blocks_.find(word.first);
    if (block != nullptr) block->table = true;
    return block == nullptr;
  });
  for (const auto& word : words) words_.erase(word.first);
  words_.merge(words);
}

Status Program::give_back(Bytes bytes) {
  if (!pager_->paging()) PENSTOCK_TRY(start());
  const std::lock_guard lock(lending_mutex_);
  const Bytes budget = this->budget();
  const Bytes smallest = std::max(pager_->smallest(), options_.budget / 8);
  // What it does not hold others have, and gives them nothing.
  const Bytes held = std::clamp(pager_->stats().device_bytes, std::min(smallest, budget), budget);
  const Bytes given = std::max(bytes == 0 ? held / kShareOfUnknown : bytes, options_.page_bytes);
  if (given > held - std::min(held, smallest)) {
    return {Code::kOutOfMemory,
            driver::text(driver::size_text(bytes), " more cannot be given back")};
  }
  return lend(budget - held + given, budget);
}

Status Program::lend(Bytes bytes, Bytes budget) {
  PENSTOCK_TRY(pager_->resize(budget - bytes));
  lent_ += bytes;
  const std::lock_guard lock(blocks_mutex_);
  looked_at_ = announced_;
  return {};
}

void Program::take_again() {
  const std::lock_guard lock(lending_mutex_);
  const Result<driver::MemoryInfo> memory = device_.memory_info();
  if (!memory.ok()) return;
  const Bytes bytes =
      policy::residency::taken_again(lent_, memory.value().free, options_.page_bytes);
  if (bytes > 0 && pager_->resize(budget() + bytes).ok()) lent_ -= bytes;
}

// Others may have taken device memory that the budget counts on: then it is what is held.
bool Program::settle_for_less() {
  const std::lock_guard lock(lending_mutex_);
  const Bytes held = std::max(pager_->stats().device_bytes, pager_->smallest());
  const Bytes budget = this->budget();
  return held + options_.page_bytes <= budget && lend(budget - held, budget).ok();
}

Result<Pin> Program::pin(Addr address) {
  for (;;) {
    const Block block = block_of(address);
    if (block.bytes == 0 || !allocator_->pin(block.address).ok()) return Pin{};
    Pin pin{};
    {
      // It may have been freed and its address given out meanwhile.
      const std::lock_guard lock(blocks_mutex_);
      const Block* found = blocks_.find(address);
      if (found != nullptr && found->id == block.id) {
        pin = Pin{++last_pin};
        pins_.emplace(pin, block);
      }
    }
    if (pin == Pin{}) {
      allocator_->unpin(block.address);
      continue;
    }
    const Status status = pager_->pin(block.address, block.bytes, 1);
    if (!status.ok()) {
      (void)forget(pin, false);
      allocator_->unpin(block.address);
      return status;
    }
    const std::lock_guard lock(blocks_mutex_);
    if (options_.recorder != nullptr) options_.recorder->pinned(block.id, true);
    return pin;
  }
}

Program::Block Program::forget(Pin pin, bool recorded) {
  const std::lock_guard lock(blocks_mutex_);
  const auto found = pins_.find(pin);
  if (found == pins_.end()) return {};
  const Block block = found->second;
  pins_.erase(found);
  if (recorded && options_.recorder != nullptr) options_.recorder->pinned(block.id, false);
  return block;
}

void Program::unpin(Pin pin) {
  const Block block = forget(pin, true);
  if (block.bytes == 0) return;
  (void)pager_->pin(block.address, block.bytes, -1);
  allocator_->unpin(block.address);
}

Status Program::stay(Addr address) {
  if (block_of(address).stays) return {};
  PENSTOCK_ASSIGN(const Pin pin, this->pin(address));
  if (pin == Pin{}) return {};
  bool already = false;
  {
    const std::lock_guard lock(blocks_mutex_);
    already = std::exchange(blocks_.find(address)->stays, true);
  }
  if (already) {
    unpin(pin);
  } else {  // its pages stay pinned until freed() lets them go
    allocator_->unpin(forget(pin, false).address);
  }
  return {};
}

Status Program::stream_gone(driver::Stream stream) {
  const Status paging = pager_->stream_gone(stream);
  const Status packing = allocator_->stream_gone(stream);
  return paging.ok() ? packing : paging;
}

}  // namespace penstock::engine
