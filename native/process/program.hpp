// SPDX-License-Identifier: Apache-2.0
// A program on one device, seen from outside: its allocations, and its work piece by piece with the
// addresses that each piece touches.  Joins the stitching allocator's packing with the pager: while
// everything fits the pager has nothing to do and work need not be announced; once memory runs
// short, `start_paging` is called, and from then on every piece of work is.
//
// Thread rule: any thread, several at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/allocation/allocator.hpp"
#include "engine/paging/paged_memory.hpp"
#include "engine/paging/pager.hpp"
#include "engine/recording/work_recorder.hpp"
#include "process/block_table.hpp"
#include "process/launch_costs.hpp"

namespace penstock::engine {

struct ProgramOptions {
  Bytes budget = 0;      // of device memory
  Bytes page_bytes = 0;  // 0: from the budget
  Bytes host_bytes = 0;  // that blocks beyond the budget may take; 0: no limit
  Evicted evicted = Evicted::kUnmapped;
  std::function<void()> start_paging;  // see above
  std::function<void()> widened;       // window() has changed; called under the allocator's lock
  WorkRecorder* recorder = nullptr;    // told of all that is said here; outlives the program
};

// An address that work touches, as far as it is known.
struct TouchedAddress {
  Addr address = 0;
  Bytes bytes = 0;  // from there on; 0: its whole block
  bool written = true;
  // Of copies and fills.  Gaps: not all the bytes in between.  What a copy reads goes to what the
  // next address says it writes, or, away, to where no Program has a block.
  bool gaps = false;
  bool away = false;
};

// An address among the bytes that a copy brings from the host, and where it will stand.
struct HeldAddress {
  Addr at = 0;
  Addr address = 0;
};

// A hold on a block, of whoever cannot say when it is touched.
enum class Pin : std::uint64_t {};  // never used again; Pin{}: none

class Program : private BlockObserver {
 public:
  // `start_paging` of the options returns when all work from here on is announced, and none given
  // before is still on its way to the device.
  static Result<std::unique_ptr<Program>> create(driver::Driver& device,
                                                 const ProgramOptions& options);
  ~Program() override;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] Allocator& allocator() { return *allocator_; }
  [[nodiscard]] Pager& pager() { return *pager_; }
  [[nodiscard]] const ProgramOptions& options() const { return options_; }
  // Of announce(), while there is paging.
  [[nodiscard]] const LaunchCosts& launch_costs() const { return launch_costs_; }
  [[nodiscard]] Bytes held() const { return held_.load(std::memory_order_relaxed); }

  struct Block {
    Addr address = 0;
    Bytes bytes = 0;
    std::uint64_t id = 0;  // never used again
    std::uint64_t whole =
        0;                 // the last piece of work that touched it wholly and may have written it
    bool table = false;    // it may hold addresses
    bool stays = false;    // see stay()
    bool decided = false;  // of a small one: whether it is kept
    bool kept = false;     // it keeps its page there; see keep()
  };
  // The block around an address; bytes 0: there is none.
  Block block_of(Addr address);
  // The span of addresses in which all blocks lie, as far as there are any yet.
  [[nodiscard]] std::pair<Addr, Addr> window() const;

  // Everything the work touches is resident for `stream`.  After success the work is given to the
  // stream, and given() called.  opaque: it may touch more than is named; function
  // (a handle, or 0) and kind: what it is, for the recorder.  Kernels that touch a block may reach
  // what lies at the addresses that copies brought there, and so on from those.
  Status announce(driver::Stream stream, std::span<const TouchedAddress> touched,
                  bool opaque = false, std::uint64_t function = 0,
                  WorkKind kind = WorkKind::kKernel, std::span<const HeldAddress> held = {});
  void given(driver::Stream stream) { pager_->given(stream); }
  // The block around the address is resident and stays so, its bytes nobody else's even if it is
  // freed, until unpin().  Pin{}: there is none.
  Result<Pin> pin(Addr address);
  void unpin(Pin pin);
  // The same until it is freed; asking again changes nothing.
  Status stay(Addr address);
  // The stream is about to be destroyed.
  Status stream_gone(driver::Stream stream);
  // Others need device memory: so much less is held, if that can be, until it is free again.
  Status give_back(Bytes bytes);
  // What the program may hold now.
  [[nodiscard]] Bytes budget() const { return options_.budget - lent_; }

 private:
  Program(driver::Driver& device, const ProgramOptions& options)
      : device_(device), options_(options) {}
  Status start();
  void allocated(Addr address, Bytes bytes) override;
  void freed(Addr address) override;

  driver::Driver& device_;
  ProgramOptions options_;
  std::unique_ptr<Pager> pager_;
  std::unique_ptr<PagedMemory> memory_;
  std::unique_ptr<Allocator> allocator_;
  using Words = std::map<Addr, Addr>;  // addresses in memory, by where they stand
  Block forget(Pin pin, bool recorded);
  Status lend(Bytes bytes, Bytes budget);
  void take_again();
  bool settle_for_less();
  // Of the smallest blocks: what kernels reach by an address in a module's variable is mostly such
  // (the runtimes of languages that compile kernels), and their pages are few.
  struct Small {
    Addr address = 0;
    std::uint64_t id = 0;
  };
  void keep(std::span<const Small> blocks);
  [[nodiscard]] bool small(const Block& block) const {
    return block.bytes <= options_.page_bytes / 64;
  }
  void touch(Block& block, const TouchedAddress& how, std::vector<Touch>& touches);
  Words carried(std::span<const TouchedAddress> touched, std::span<const HeldAddress> held,
                std::vector<Addr>& away) const;
  void stand(std::span<const TouchedAddress> touched, Words words);
  void erase_words(Addr at, Bytes bytes) {
    words_.erase(words_.lower_bound(at), words_.lower_bound(at + bytes));
  }

  std::mutex blocks_mutex_;
  BlockTable<Block> blocks_;
  Words words_;
  std::unordered_map<Pin, Block> pins_;
  std::unordered_map<Addr, int> kept_;  // small blocks that keep a page, by where that begins
  std::uint64_t next_block_ = 0;
  std::uint64_t announced_ = 0;
  std::atomic<Bytes> held_{0};
  LaunchCosts launch_costs_;
  std::mutex lending_mutex_;  // of who changes what is lent
  std::atomic<Bytes> lent_{0};
  std::uint64_t looked_at_ = 0;  // the piece of work at which it was last asked what is free
  std::atomic<Addr> lowest_{~Addr{0}};
  std::atomic<Addr> highest_{0};
};

}  // namespace penstock::engine
