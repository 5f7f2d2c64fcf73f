// SPDX-License-Identifier: Apache-2.0
// A simulation's subject that brings a page in when work touches it and not before, into the place
// of one that a classic rule names.  Blocks lie where Penstock's allocator puts them, pages are as
// large as Penstock's, and a page that comes costs the same calls: its predecessor is unmapped once
// its last use is over, which the calling thread waits for, and the new one mapped.
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/simulate_subject.hpp"

namespace penstock::engine {
namespace {

using driver::Ns;
using policy::PageId;

class DemandSubject final : public SimulateSubject {
 public:
  DemandSubject(driver::ModelledDriver& device, const WorkProgram& program,
                const SimulateOptions& options)
      : SimulateSubject(device, program, options),
        rule_(static_cast<policy::baseline::Evict>(options.policy)) {}

  Status start() override {
    PENSTOCK_TRY(lay_out());
    list_uses();
    PENSTOCK_ASSIGN(in_, device_.create_stream());
    PENSTOCK_ASSIGN(out_, device_.create_stream());
    return {};
  }

  Status allocate(std::uint32_t block) override {
    for (const PageId id : pages_of_block(block)) {
      ++pages_[nth(id)].live;
      dead_.erase(id);
    }
    return {};
  }

  Status free(std::uint32_t block) override {
    for (const PageId id : pages_of_block(block)) {
      Page& page = pages_[nth(id)];
      if (--page.live > 0) continue;
      page.dirty = page.on_host = false;  // nothing lives in it any more: it goes first
      if (page.resident) dead_.insert(id);
    }
    return {};
  }

  Status pin(std::uint32_t block, int delta) override {
    for (const PageId id : pages_of_block(block)) {
      Page& page = pages_[nth(id)];
      page.pins += delta;
      if (delta < 0 || page.resident) continue;
      PENSTOCK_ASSIGN(const Ns arrives, bring_in(id));
      rule_.used(id, now_, now_);
      device_.wait_until(arrives);
    }
    return {};
  }

  Status work(std::uint32_t piece_index, driver::Stream stream) override {
    const WorkPiece& piece = program_.pieces[piece_index];
    now_ = piece_index + std::int64_t{1};
    const std::size_t first = first_use_[piece_index];
    const std::size_t end = first_use_[piece_index + std::size_t{1}];
    for (std::size_t i = first; i < end; ++i) {
      Page& page = pages_[nth(uses_[i].page)];
      page.touched = now_;  // it may not leave for another one of this piece
      if (page.resident) rule_.used(uses_[i].page, now_, uses_[i].next);
    }
    for (std::size_t i = first; i < end; ++i) {
      Page& page = pages_[nth(uses_[i].page)];
      if (page.resident) continue;
      PENSTOCK_ASSIGN(const Ns arrives, bring_in(uses_[i].page));
      rule_.used(uses_[i].page, now_, uses_[i].next);
      device_.hold(stream, arrives);
    }
    device_.launch(stream, piece.device_ns);
    for (std::size_t i = first; i < end; ++i) {
      pages_[nth(uses_[i].page)].last_use = device_.end_of(stream);
    }
    for (const WorkTouch& touch : program_.touches_of(piece)) {
      if (!changes(piece, touch)) continue;
      each_page(touch, [&](Addr page) { pages_[nth(number_of(page))].dirty = true; });
    }
    return {};
  }

  SimulateCounts counts() override { return counts_; }

 private:
  struct Page {
    std::int64_t live = 0;  // blocks that lie in it
    std::int64_t pins = 0;
    std::int64_t touched = 0;  // the piece of work that last did, from 1
    Ns last_use = 0;           // when that is over
    bool resident = false;
    bool dirty = false;
    bool on_host = false;  // its content has left before
  };
  struct Use {
    PageId page;
    std::int64_t next;  // the piece that touches it next, from 1
  };
  static constexpr std::int64_t kNeverAgain = std::int64_t{1} << 60;

  // Where Penstock's allocator puts each block.
  Status lay_out() {
    PENSTOCK_ASSIGN(const auto scratch,
                    driver::ModelledDriver::open({.capacity = options_.device_bytes,
                                                  .granularity = options_.granularity,
                                                  .costs = options_.costs}));
    PENSTOCK_ASSIGN(const auto layout, Program::create(*scratch, engine_options()));
    page_bytes_ = layout->options().page_bytes;
    slots_ = options_.budget / page_bytes_;
    for (const WorkEvent& event : program_.events) {
      if (event.op == WorkOp::kAllocate) {
        PENSTOCK_ASSIGN(addresses_[event.index],
                        layout->allocator().allocate(program_.blocks[event.index].bytes,
                                                     driver::kDefaultStream));
      } else if (event.op == WorkOp::kFree) {
        PENSTOCK_TRY(layout->allocator().free(addresses_[event.index]));
      }
    }
    return {};
  }

  PageId number_of(Addr page) {
    const auto [found, added] = numbers_.try_emplace(page, static_cast<PageId>(pages_.size()));
    if (added) pages_.emplace_back();
    return found->second;
  }

  std::vector<PageId> pages_of_block(std::uint32_t block) {
    std::vector<PageId> pages;
    each_page({block, 0, program_.blocks[block].bytes},
              [&](Addr page) { pages.push_back(number_of(page)); });
    return pages;
  }

  // The pages of each piece, each once, and when they are touched next.
  void list_uses() {
    first_use_.push_back(0);
    for (std::size_t i = 0; i < program_.pieces.size(); ++i) {
      for (const WorkTouch& touch : program_.touches_of(program_.pieces[i])) {
        each_page(touch, [&](Addr page) {
          const PageId id = number_of(page);
          const auto here = static_cast<std::int64_t>(i) + 1;
          if (std::exchange(pages_[nth(id)].touched, here) == here) return;
          uses_.push_back({id, kNeverAgain});
        });
      }
      first_use_.push_back(uses_.size());
    }
    std::vector<std::int64_t> next(pages_.size(), kNeverAgain);
    for (std::size_t i = program_.pieces.size(); i-- > 0;) {
      for (std::size_t u = first_use_[i]; u < first_use_[i + 1]; ++u) {
        uses_[u].next = std::exchange(next[nth(uses_[u].page)], static_cast<std::int64_t>(i) + 1);
      }
    }
    for (Page& page : pages_) page.touched = 0;
  }

  // When the page has arrived.
  Result<Ns> bring_in(PageId id) {
    Ns room = 0;  // from when on there is
    if (rule_.resident() >= slots_) {
      PENSTOCK_ASSIGN(room, evict());
    }
    device_.advance(device_.mapping_time());
    Page& page = pages_[nth(id)];
    page.resident = true;
    if (!page.on_host) return room;
    device_.hold(in_, room);
    PENSTOCK_TRY(device_.copy_in(0, nullptr, page_bytes_, in_));
    counts_.bytes_in += page_bytes_;
    ++counts_.loads;
    return device_.end_of(in_);
  }

  Result<Ns> evict() {
    PageId victim = dead_.empty() ? -1 : *dead_.begin();
    if (victim < 0) {
      victim = rule_.victim([this](PageId id) {
        const Page& page = pages_[nth(id)];
        return page.touched != now_ && page.pins == 0;
      });
    }
    if (victim < 0) return Status(Code::kOutOfMemory, "the budget is full of what is in use");
    rule_.left(victim);
    dead_.erase(victim);
    Page& page = pages_[nth(victim)];
    page.resident = false;
    device_.wait_until(page.last_use);
    Ns room = page.last_use;
    if (std::exchange(page.dirty, false)) {
      device_.hold(out_, room);
      PENSTOCK_TRY(device_.copy_out(nullptr, 0, page_bytes_, out_));
      counts_.bytes_out += page_bytes_;
      page.on_host = true;
      room = device_.end_of(out_);
      device_.wait_until(room);  // what is unmapped cannot be copied
    }
    device_.advance(device_.unmapping_time());
    return room;
  }

  policy::baseline::Eviction rule_;
  Bytes slots_ = 0;
  std::unordered_map<Addr, PageId> numbers_;
  std::vector<Page> pages_;
  std::vector<std::size_t> first_use_;  // by piece, and one behind the last
  std::vector<Use> uses_;
  std::set<PageId> dead_;  // resident, and nothing lives in them
  std::int64_t now_ = 0;   // the piece of work, from 1
  driver::Stream in_{};
  driver::Stream out_{};
  SimulateCounts counts_;
};

}  // namespace

std::unique_ptr<SimulateSubject> make_demand_subject(driver::ModelledDriver& device,
                                                     const WorkProgram& program,
                                                     const SimulateOptions& options) {
  return std::make_unique<DemandSubject>(device, program, options);
}

}  // namespace penstock::engine
