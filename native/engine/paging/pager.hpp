// SPDX-License-Identifier: Apache-2.0
// The pager: ranges larger than device memory, kept resident where the program is about to touch
// them.  It joins the page table, the resident set, the recorder and the plan; the plan comes from
// policy::schedule().  All public functions take the one lock.
//
// Life of a use: begin() makes every page of it resident (on its way is enough) and lets the stream
// wait for the copies; the program gives its kernels to the stream; end() marks the point after
// them, which frees slots for the loads that the plan has next, and these are issued at once.  What
// the host waits for depends on what becomes of evicted addresses, see resident_set.hpp.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/order/streams.hpp"
#include "engine/paging/chunk_pool.hpp"
#include "engine/paging/counters.hpp"
#include "engine/paging/page_table.hpp"
#include "engine/paging/plan_cursor.hpp"
#include "engine/paging/recorder.hpp"
#include "engine/paging/resident_set.hpp"
#include "engine/paging/stall_profile.hpp"
#include "policy/learning/ahead_record.hpp"
#include "policy/learning/next_uses.hpp"
#include "policy/learning/turns.hpp"
#include "policy/residency/even_pace.hpp"
#include "policy/residency/idle_pages.hpp"
#include "policy/residency/look_ahead.hpp"
#include "policy/residency/victim.hpp"

namespace penstock::engine {

class SharedBudget;

inline constexpr std::uint32_t kCopyStreams = 2;

struct PagerOptions {
  Bytes budget = 0;
  Bytes chunk_bytes = 0;
  Bytes look_ahead_bytes = 0;
  Bytes max_copy_bytes = 0;
  std::uint32_t copy_streams = 0;  // 0 = kCopyStreams
  Evicted evicted = Evicted::kUnmapped;
  std::int32_t profile_every = 0;
  double link_gb_per_s = 0;  // of copies in; 0: unknown
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
  Bytes encoded_bytes = 0;
  Bytes code_bytes = 0;
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
  // The uses since the last call were one; what begins is of this kind, whose order may be known.
  // Work: what tells how long it takes, such as a number of tokens.
  Status iteration(std::int64_t kind = 0, std::uint64_t work = 0);
  Status fetch(Addr address, Bytes bytes);
  // Whether the page is there in which the address lies, of a paged range.
  Result<bool> is_resident(Addr address);
  Status flush(Addr address, Bytes bytes);
  // What lies there is not needed until a use writes it.
  Status forget(Addr address, Bytes bytes);
  Status cool(Addr address, Bytes bytes);
  // Encode the host memory of these blocks, all those of a paged range that is not in use yet,
  // where it gains; says where the others lie then.  What is encoded must not be written, on either
  // side.
  Status pack(std::span<Packing> blocks);
  // A block as the host has it, of a range that was packed.
  Status read(Addr address, Bytes bytes, std::byte* to);
  // Such a block is not encoded from here on; where it lies.
  Result<std::byte*> unpack(Addr address, Bytes bytes);
  // What is encoded is what it was, on the host by its digests, and on the device, where it is, by
  // what its code stands for; how many bytes.  kDriver where it is not.
  Result<Bytes> verify();
  Status resize(Bytes budget);
  Bytes smallest();
  // The budget is part of a shared one from here on; null: of none.
  Status share(SharedBudget* shared);
  [[nodiscard]] SharedBudget* shared() const { return shared_.load(std::memory_order_acquire); }
  // So much less of it, or as much as pages that are not in use allow: how much.  Of a shared one
  // it comes back when a use needs it.
  Result<Bytes> yield(Bytes bytes);
  // When the last use began, among all pagers of the process.
  [[nodiscard]] std::uint64_t last_begun() const { return begun_.load(std::memory_order_relaxed); }
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
  // to the stream, and given() called by the same thread; a later announcement may end its stay.
  Status announce(driver::Stream stream, std::span<const Touch> touches);
  void given(driver::Stream stream);
  // Another device reaches this one's memory from here on.  Waits for all work to be over.
  Status share_with(int ordinal);
  // The host waits for all work given so far, as the driver does where memory is freed; not for the
  // pages that come and go meanwhile.
  Status wait_for_work();
  // The stream is about to be destroyed.
  Status stream_gone(driver::Stream stream);
  // Resident (+1), and not to leave before as many -1.  A failure changes nothing.
  Status pin(Addr address, Bytes bytes, int delta);
  // Where the page of a heap begins in which the address lies; 0: in none.
  Addr page_around(Addr address);

 private:
  // Pages that the work since its beginning touches on one stream; no mark of their use yet.
  struct Group {
    StreamId id{};
    driver::Stream stream{};
    std::vector<PageId> pages;
    std::uint64_t last = 0;      // the last piece of work
    bool marked = false;         // all work given so far
    Mark death{};                // by this
    int under_way = 0;           // announced and not given to the stream yet: no mark can cover it
    std::uint64_t arrivals = 0;  // of pages mapped before they arrived: its stream waits for those
  };
  // What the last iteration of some kind was like.
  struct KnownKind {
    policy::learning::Regulars regulars;
    SlotId others = 0;         // pages of the largest use that comes and goes
    std::vector<UseId> order;  // of the regular ones
    policy::Sequence sequence;
    std::int64_t number = 0;  // of its order; the same for kinds whose orders are the same
    // Of an iteration with so much work, by its bits: without stalls, and the latest.
    std::map<int, double> compute_ms;
    double latest_ms = 0;
  };
  Pager(driver::Driver& driver, const PagerOptions& options);
  Status check_use(UseId use) const;
  Timeline& timeline(driver::Stream stream);
  Status mark_now(driver::Stream stream, Mark& mark);  // what has been given to it so far
  Status spare_timeline(StreamId id);
  Result<std::int32_t> new_range(Bytes bytes, RangeKind kind);
  [[nodiscard]] SlotId slots_for(Bytes budget) const;
  [[nodiscard]] SlotId largest_use() const;
  Status fit_slots();
  Status stage();
  Status change_slots(SlotId wanted, Bytes budget);
  SlotId one_more_slot();
  Result<std::vector<SlotId>> choose_slots_to_give(SlotId wanted, const policy::Plan* next);
  Status give_slots(std::vector<SlotId> slots);
  // For use at once: its move is under way, or it has a slot already.
  Status bring(PageId page);
  [[nodiscard]] const std::vector<PageId>& pages_of(UseId use) const {
    return uses_[static_cast<std::size_t>(use)].pages;
  }
  Status bring_all(UseId use, driver::Stream stream);
  // The pages are there, for the host or for the stream; what did not come ahead is demanded.
  Status await(const std::vector<PageId>& pages, UseId use, driver::Stream stream,
               std::optional<std::span<const Mark>> quiet = {});
  Status demand(PageId page);
  Result<SlotId> choose_slot(PageId page);
  Result<SlotId> unmoving(const std::function<Result<SlotId>()>& choose);
  [[nodiscard]] bool is_free(SlotId slot);
  [[nodiscard]] policy::residency::Held held(SlotId slot);
  Status issue_loads();
  [[nodiscard]] bool in_the_way(const PlanCursor::Next& load);
  std::int64_t number_of(const std::vector<UseId>& order);
  void learn_kind(KnownKind& seen, const std::vector<UseId>& order);
  [[nodiscard]] bool comes_and_goes(UseId use) const;
  Status plan_turns(std::vector<std::int64_t> turns);
  Status make_plan();
  void profiled();
  [[nodiscard]] std::optional<double> computes() const;
  [[nodiscard]] Result<policy::Plan> draw_plan(SlotId slots) const;
  void adopt(policy::Plan plan, std::int64_t begun);
  void relabel(policy::Plan& plan);
  void pages_touched(std::span<const Touch> touches, std::vector<PageId>& pages);
  std::size_t group_of(driver::Stream stream);
  void mark_death(Page& page);
  bool mark_groups(std::vector<Mark>& marks);
  bool may_map_early() const {
    return options_.evicted == Evicted::kUnmapped && paging_ && !others_reach_;
  }
  std::optional<std::span<const Mark>> quiet();
  Status wait_for_arrivals(Group& group);
  Result<bool> mark_end(const Group& group, Mark& mark);
  Status pin_page(PageId id);
  Status enter(std::size_t group);
  Status bring_in(std::size_t group);
  Status close(std::size_t group);  // nothing, while work of it is under way
  Status close_idle(std::size_t but);
  // By next uses (pager_foresight.cpp).
  using Position = policy::learning::NextUses::Position;
  void cover_pages();
  void uses(PageId page);
  void rests(PageId page);
  void leaves(PageId page);
  std::optional<PageId> needed_last();
  SlotId slot_for(PageId page, Position distance);
  [[nodiscard]] std::size_t pages_in_a_move() const;
  Status demand_other(PageId page);
  void try_ahead();
  Status bring_ahead();
  void look_for_missing();
  [[nodiscard]] bool missing(PageId page) const;
  [[nodiscard]] std::size_t run_from(Position at) const;
  Result<std::size_t> bring_run(std::size_t most);
  Status plan_or_drop();
  void drop_plan();
  Status copy_pinned(const Range& range, Addr address, Bytes bytes, bool in);
  // With kOnHost no mapping may change while another thread has announced work and not given it
  // yet.
  [[nodiscard]] bool others_giving() const;
  void wait_for_others(std::unique_lock<std::mutex>& lock);
  static void fail_unless(const Status& status);  // in builds for tests
  void check_residency();

  std::mutex mutex_;
  std::condition_variable given_;
  std::map<std::thread::id, int> giving_;  // with kOnHost: pieces of work between those, by thread
  driver::Driver& driver_;
  PagerOptions options_;
  Counters counters_;
  // Order matters: the resident set goes first, and still needs the timelines.
  Streams streams_;
  std::map<StreamId, std::unique_ptr<Timeline>> timelines_;
  std::vector<std::unique_ptr<Timeline>> spare_timelines_;  // of streams that are gone
  ChunkPool pool_;
  PageTable table_;
  StallProfile stalls_;
  ResidentSet residents_;
  std::vector<Use> uses_;
  Recorder recorder_;
  policy::Sequence sequence_;  // the planned one
  std::map<std::int64_t, KnownKind> kinds_;
  std::int64_t kind_ = 0, numbers_ = 0;
  int work_ = 0;  // bits of it
  policy::learning::Turns turns_;
  std::vector<std::int64_t> planned_turns_;  // numbers of orders; the plan is of them all
  std::vector<std::size_t> turn_ends_;       // where each is over, in steps
  std::size_t turn_ = 0;                     // the present one
  PlanCursor cursor_;
  std::vector<std::pair<UseId, driver::Stream>> active_;
  bool lacks_budget_ = false;   // a shared budget was asked for a slot, and had none
  int waiting_ = 0;             // uses that began and wait, without the lock, for room
  std::vector<Mark> arrivals_;  // of the use that begins; kept for its capacity
  bool held_up_ = false;        // the next load waits for a move of its page or slot
  bool disturbed_ = false;      // this iteration did not go as planned
  bool measured_ = false;       // the plan knows other times of its iterations than were measured
  std::uint64_t clock_ = 0;
  Counters at_boundary_;  // when the last iteration ended
  Counters before_;       // when it began

  std::atomic<SharedBudget*> shared_{nullptr};
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<bool> paging_{false};
  std::vector<Group> groups_;
  std::uint64_t announced_ = 0;
  policy::learning::NextUses next_uses_;
  policy::residency::IdlePages idle_{next_uses_};
  policy::learning::AheadRecord came_ahead_;
  std::uint64_t jumps_ = 0;        // of next_uses_, when what follows was right
  Position ahead_ = 0;             // up to where in next_uses_ pages have been brought in
  Position look_again_ = 0;        // from where on it is tried again
  std::vector<Position> brought_;  // where those stand
  policy::residency::LookAhead look_ahead_;
  policy::residency::EvenPace even_pace_;
  SlotId reserve_ = 0;                   // slots that the plan leaves to pages it does not know
  std::vector<PageId> touched_, fresh_;  // kept for their capacity
  std::vector<Mark> quiet_;              // likewise
  bool others_reach_ = false;            // other devices may
  std::map<Bytes, std::vector<Addr>> closed_heaps_;
};

}  // namespace penstock::engine
