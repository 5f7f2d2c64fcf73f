// SPDX-License-Identifier: Apache-2.0
// The pager: ranges larger than device memory, kept resident where the program is about to touch
// them.  It joins the page table, the resident set, the recorder and the plan; the plan comes from
// policy::schedule().  All public functions take the one lock.
//
// Life of a use: begin() makes every page of it resident (on its way is enough) and lets the stream
// wait for the copies; the program gives its kernels to the stream; end() marks the point after
// them, which frees slots for the loads that the plan has next, and these are issued at once.  The
// host never waits in a steady iteration: all order is kept by events between streams.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/chunk_pool.hpp"
#include "engine/counters.hpp"
#include "engine/page_table.hpp"
#include "engine/plan_cursor.hpp"
#include "engine/recorder.hpp"
#include "engine/resident_set.hpp"
#include "engine/stall_profile.hpp"
#include "policy/learning/known_orders.hpp"
#include "policy/learning/period.hpp"

namespace penstock::engine {

inline constexpr std::uint32_t kCopyStreams = 2;

// What becomes of an evicted page's address while other pages have its memory.
enum class Evicted {
  kMapped,    // it stays as it is: nothing needs mapping when the page comes back to its place
  kUnmapped,  // unmapped as soon as its last use is over: a use that was not declared faults
  kProven,    // unmapped until the program goes by its plan with kernels that were tried
  kOnHost     // it leads to the page's copy on the host: undeclared uses are slow, and right
};

struct PagerOptions {
  Bytes budget = 0;
  Bytes chunk_bytes = 0;
  Bytes look_ahead_bytes = 0;
  Bytes max_copy_bytes = 0;
  std::uint32_t copy_streams = 0;  // 0 = kCopyStreams
  Evicted evicted = Evicted::kMapped;
  std::int32_t profile_every = 0;
};

struct Piece {
  Addr address = 0;
  Bytes bytes = 0;
  bool written = false;
};

// What a piece of announced work touches.
struct Touch {
  Addr address = 0;
  Bytes bytes = 0;
  bool written = false;
  bool settled = false;  // of a block that work comes back to again and again, such as a weight
};

struct PagerStats {
  Counters counters;
  StallSummary stalls;
  Bytes budget = 0;
  Bytes device_bytes = 0;
  Bytes peak_device_bytes = 0;
  Bytes pinned_bytes = 0;
  Bytes host_bytes = 0;
  Bytes paged_bytes = 0;
  std::uint64_t pages = 0;
  std::uint64_t uses = 0;  // that are known, declared or learned
  std::uint64_t slots = 0;
  std::uint64_t kept_pages = 0;
  std::uint64_t streamed_pages = 0;
  std::uint64_t stream_slots = 0;
  Bytes planned_bytes_in = 0;
  Bytes iteration_bytes_in = 0;
  Bytes iteration_bytes_out = 0;
  std::uint64_t iteration_page_uses = 0;
  std::uint64_t iteration_page_loads = 0;
};

class Pager {
 public:
  static Result<std::unique_ptr<Pager>> create(driver::Driver& driver, const PagerOptions& options);
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  Result<std::int32_t> create_range(Bytes bytes, RangeKind kind);
  Range range(std::int32_t index);
  Result<UseId> define_use(const std::vector<Piece>& pieces);
  Status begin(UseId use, driver::Stream stream);
  Status end(UseId use, driver::Stream stream);
  Status iteration();
  Status fetch(Addr address, Bytes bytes);
  Status flush(Addr address, Bytes bytes);
  // What lies there is not needed until a use writes it.
  Status forget(Addr address, Bytes bytes);
  Status resize(Bytes budget);
  Bytes smallest();
  PagerStats stats();

  // ---- A program that announces its work piece by piece (pager_program.cpp) ----
  // Addresses whose pages come to be with back() and go with discard().  Blank pages hold nothing.
  Result<Addr> create_heap(Bytes bytes);
  Status close_heap(Addr address);
  // Before start_paging() pages are resident at once, or kOutOfMemory; then as they are touched.
  Status back(Addr address, Bytes bytes);
  Status discard(Addr address, Bytes bytes);
  // All work given so far is over; from here on all work is announced.
  void start_paging();
  [[nodiscard]] bool paging() const { return paging_.load(std::memory_order_acquire); }
  // A block is made there (+1) or freed (-1).
  void occupy(Addr address, Bytes bytes, int delta);
  // All of it is resident for work given to `stream` from here on.  After success the work is given
  // to the stream, and given() called; a later announcement may end its stay.  opaque: it may touch
  // more than is named.  function: which kernel it is; 0: none, or one that touches what is named.
  Status announce(driver::Stream stream, std::span<const Touch> touches, bool opaque = false,
                  std::uint64_t function = 0);
  void given(driver::Stream stream);
  // Another device reaches this one's memory from here on.  Waits for all work to be over.
  Status share_with(int ordinal);
  Status close_stream(driver::Stream stream);
  // Resident, and not to leave while pinned.
  Status pin(Addr address, Bytes bytes, int delta);

 private:
  // Pages that the work since its beginning touches on one stream; no mark of their use yet.
  struct Group {
    driver::Stream stream{};
    std::vector<PageId> pages;
    std::uint64_t last = 0;  // the last piece of work
    int under_way = 0;       // announced and not given to the stream yet: no mark can cover it
  };
  Pager(driver::Driver& driver, const PagerOptions& options);
  Status check_use(UseId use) const;
  Timeline& timeline(driver::Stream stream);
  [[nodiscard]] SlotId slots_for(Bytes budget) const;
  [[nodiscard]] SlotId largest_use() const;
  Status fit_slots();
  Status demand(PageId page);
  Result<SlotId> choose_slot(PageId page);
  [[nodiscard]] bool is_free(SlotId slot);
  Status wait_for(const std::vector<Mark>& arrivals, UseId use, driver::Stream stream);
  Status issue_loads();
  [[nodiscard]] bool in_the_way(const PlanCursor::Next& load);
  Status make_plan(std::int64_t begun = 0);  // of its first iteration, steps that are over
  Status adopt(policy::Plan plan, std::int64_t begun);
  void relabel(policy::Plan& plan);
  void pages_touched(std::span<const Touch> touches, std::vector<PageId>& pages);
  std::size_t group_of(driver::Stream stream);
  Status enter(std::size_t group);
  Status bring_in(std::size_t group);
  Status close(std::size_t group);  // nothing, while work of it is under way
  Status close_idle(std::size_t but);
  Status demand_other(PageId page);
  SlotId choose_other_slot();
  UseId intern(const std::vector<PageId>& pages);
  void forget_uses();
  Status use_begins(UseId use);
  bool follows(UseId use);  // the plan; moves its cursor on
  Status learn(UseId use);
  Status adopt_order(std::vector<UseId> order, SlotId reserve = 0, std::size_t next = 0);
  Status plan_or_drop(std::int64_t begun = 0);
  void drop_plan();
  void count_pass(std::int64_t uses);
  void distrust();  // evicted pages are unmapped from here on
  [[nodiscard]] bool trusts(std::uint64_t function);
  Status doubt(bool opaque, std::uint64_t function);
  [[nodiscard]] SlotId others_within(std::size_t uses) const;
  [[nodiscard]] bool tells(const Page& page) const;
  void joins(Page& page, bool of_use);
  void not_hot(Page& page);
  Status recognise();
  Status copy_pinned(const Range& range, Addr address, Bytes bytes, bool in);
  // Nobody else is between announcing work and giving it, where that matters.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> alone();

  std::recursive_mutex giving_;  // with kOnHost: from announce() to given(); taken before mutex_
  std::mutex mutex_;
  driver::Driver& driver_;
  PagerOptions options_;
  Counters counters_;
  // Order matters: the resident set goes first, and still needs the timelines.
  std::map<driver::Stream, std::unique_ptr<Timeline>> timelines_;
  ChunkPool pool_;
  PageTable table_;
  StallProfile stalls_;
  ResidentSet residents_;
  std::vector<Use> uses_;
  Recorder recorder_;
  policy::Sequence sequence_;  // the planned one
  PlanCursor cursor_;
  std::vector<std::pair<UseId, driver::Stream>> active_;
  std::vector<Mark> arrivals_;  // of the use that begins; kept for its capacity
  bool disturbed_ = false;      // this iteration did not go as planned
  std::uint64_t clock_ = 0;
  Counters at_boundary_;  // when the last iteration ended
  Counters before_;       // when it began

  std::atomic<bool> paging_{false};
  std::vector<Group> groups_;
  std::uint64_t announced_ = 0;
  policy::learning::Period period_;
  policy::learning::KnownOrders known_;
  std::map<std::vector<PageId>, UseId> interned_;
  std::size_t next_try_ = 0;   // of a period that was found and not worth a plan
  std::int64_t strayed_ = 0;   // how far the program has left the plan
  SlotId reserve_ = 0;         // slots that the plan leaves to pages it does not know
  SlotId stolen_ = 0;          // how many it should have left beyond that
  SlotId missed_ = 0;          // such pages that had left when they were needed again
  SlotId hot_ = 0;             // pages that join group after group
  std::int64_t followed_ = 0;  // uses not against the plan, of trusted work alone, up to now
  // How many passes a kernel has been in while evicted pages were unmapped.
  struct Trial {
    std::uint64_t pass = 0;  // the last of them
    int passes = 0;
  };
  std::unordered_map<std::uint64_t, Trial> functions_;
  std::uint64_t pass_ = 1;
  std::int64_t of_pass_ = 0;                       // uses since it began
  std::vector<PageId> touched_, fresh_, planned_;  // kept for their capacity
  std::map<Bytes, std::vector<Addr>> closed_heaps_;
};

}  // namespace penstock::engine
