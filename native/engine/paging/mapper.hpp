// SPDX-License-Identifier: Apache-2.0
// A thread that moves pages in and out while their addresses change with them.  A move takes
// victims out of their chunks and brings neighbouring pages into those, in this order:
//   the host sees the last uses of the victims end;  their addresses are unmapped;  what they hold
//   is copied out;  the new pages are copied in;  that has arrived;  their addresses are mapped.
// Mapped before arrival, work that was not seen to touch a page would find another's data, unless
// no work runs and none begins: see wait().  Copied out before it was unmapped, a page would lose
// what such work writes.  As no page has an address meanwhile, copies go through an address of the
// chunk's own.
//
// No two moves that are under way share a page or a chunk; the caller sees to that.  So one whose
// victims are free begins before those in front that wait, and one that is demanded before those
// that are ahead of their time.  A move that fails is undone: see Move.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/paging/page_copies.hpp"
#include "engine/paging/page_table.hpp"

namespace penstock::engine {

struct Move {
  enum class Copy { kNone, kPlain, kCompared, kIfChanged };
  struct Out {
    PageId page = kNoPage;
    SlotId slot = kNoSlot;
    driver::Chunk chunk{};
    Addr own = 0;            // the chunk's own address
    Addr address = 0;        // the page's
    std::int32_t range = 0;  // its addresses were reserved by themselves
    bool mapped = false;     // is it mapped; after a move that failed as before
    Copy copy = Copy::kNone;
    std::byte* host = nullptr;
    Bytes bytes = 0;
    driver::Fingerprint* fingerprint = nullptr;
    std::span<const Part> parts;
  };
  struct In {
    PageId page = kNoPage;
    SlotId slot = kNoSlot;
    driver::Chunk chunk{};
    Addr own = 0;
    Addr address = 0;
    const std::byte* host = nullptr;  // null, and no parts: nothing is copied
    Bytes bytes = 0;
    std::span<const Part> parts;

    [[nodiscard]] bool copied() const { return host != nullptr || !parts.empty(); }
  };
  std::vector<Mark> busy;  // of the victims' uses and copies
  std::vector<Out> out;
  std::vector<In> in;  // neighbours, in their order
  bool prefetch = false;
  std::atomic<bool> demanded{false};

  // What came of it, once wait() has returned or over() says so.  Where it failed, no page of `in`
  // is there; the victims have left all the same, their host memory current, or are where they were
  // (one whose `mapped` is false could not be mapped again: its chunk still has its data).
  Status status;
  bool left = false;
  Mark arrival;
  bool early = false;  // mapped before that

 private:
  friend class Mapper;
  bool started = false;
  std::optional<std::span<const Mark>> quiet;  // see wait()
  std::atomic<bool> finished{false};           // the mapper does not touch it after that
};

class Mapper {
 public:
  // Copies in go by `in`, all others by `out`; both, and `copies`, are the mapper's while moves are
  // under way.
  Mapper(driver::Driver& driver, Bytes chunk_bytes, PageCopies& copies, Timeline& in,
         Timeline& out);
  ~Mapper();  // after the moves that were submitted
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // The move stays where it is until it is over.  kInvalidArgument in a forked child, which has no
  // mapper.
  Status submit(Move& move);
  void hurry(Move& move);  // it is needed now
  // The host waits until it is over.  `quiet`: the marks of all work that was given so far.  Once
  // they are reached nothing runs that could find what is not there, and the new pages are mapped
  // although they have not arrived, for which whatever is given next has to wait.
  void wait(Move& move, std::optional<std::span<const Mark>> quiet = {});
  // How long this thread has waited so in all.
  static std::chrono::nanoseconds& waited();
  void keep_up();  // where time is modelled, up to now; else a thread does
  // Whether what these mark is over.
  static bool ready(std::span<const Mark> marks);
  static bool over(const Move& move) { return move.finished.load(std::memory_order_acquire); }
  [[nodiscard]] bool here() const { return getpid() == owner_; }  // not in a forked child

 private:
  void work();
  bool step(std::unique_lock<std::mutex>& lock);  // false: there is nothing to do yet
  static bool quiet(const Move& move);
  static bool may_finish(Move& move);
  Move* choose();
  bool begin(Move& move);   // true: it is over, since it failed
  bool finish(Move& move);  // true
  Status unmap(Move& move);
  Status copy_out(Move& move);
  Status copy_in(Move& move);
  Status map(Move& move);
  void undo(Move& move);
  void catch_up(const Move* until);

  driver::Driver& driver_;
  const Bytes chunk_bytes_;
  PageCopies& copies_;
  Timeline& in_;
  Timeline& out_;
  std::size_t most_;           // pages that are copied and mapped at a time
  std::size_t under_way_ = 0;  // such pages
  const pid_t owner_;
  std::int64_t time_ = 0;  // the mapper's, where time is modelled
  struct Signals {
    std::mutex mutex;  // of what follows
    std::condition_variable wake;
    std::condition_variable done;
  };
  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();
  std::mutex& mutex_ = signals_->mutex;
  std::vector<Move*> moves_;  // submitted and not over, in that order
  bool closing_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace penstock::engine
