// SPDX-License-Identifier: Apache-2.0
// The stitching allocator of one device: carries out what policy::packing decides.  Blocks live in
// ranges of reserved addresses that chunks are mapped into; free chunks that do not lie side by
// side are joined behind new addresses (GMLake, ASPLOS'24).  In the steady state of a loop no
// driver call is made.
//
// Thread rule: every function may be called from any thread; one lock a device, held through the
// driver calls of a slow path.  The filter of a pool is called under that lock.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/flat_map.hpp"
#include "driver/driver.hpp"
#include "engine/allocation/allocation_history.hpp"
#include "engine/allocation/allocator_stats.hpp"
#include "engine/allocation/memory_pool.hpp"
#include "engine/order/stream_clock.hpp"
#include "policy/packing/options.hpp"
#include "policy/packing/recovery.hpp"

namespace penstock::engine {

// Told of every block, under the allocator's lock.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void allocated(Addr address, Bytes bytes) = 0;
  virtual void freed(Addr address) = 0;  // its last use has been given to the device
};

struct AllocatorOptions {
  Bytes budget = 0;                   // 0: all that the device has
  Bytes line_bytes = 0;               // addresses of a pool; 0: twice the device's memory
  Bytes small_bytes = 0;              // smaller requests have chunks of their own
  BlockObserver* observer = nullptr;  // outlives the allocator
  packing::Options packing;
};

struct PoolId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const PoolId&) const = default;
};

enum class PieceState : std::int32_t { kFree = 0, kAllocated = 1, kAwaitingFree = 2 };

// One piece of device memory; see penstock_piece_info.
struct PieceInfo {
  Addr segment = 0;
  Bytes segment_bytes = 0;
  Addr address = 0;
  Bytes bytes = 0;
  Addr block = 0;
  std::uint64_t block_offset = 0;
  Bytes requested = 0;
  std::uint64_t stream = 0;
  PoolId pool;
  PieceState state = PieceState::kFree;
  bool stitched = false;
};

class Allocator {
 public:
  using StreamFilter = std::function<bool(driver::Stream)>;
  using ContextCallback = std::function<std::uint64_t(AllocationEvent)>;

  static Result<std::unique_ptr<Allocator>> create(driver::Driver& driver,
                                                   const AllocatorOptions& options);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // kOutOfMemory, with the numbers, after all that can be given back or waited for was.
  Result<Addr> allocate(Bytes size, driver::Stream stream);
  Status free(Addr address);
  Status record_stream(Addr address, driver::Stream stream);
  // While a block is pinned, its bytes and its address are nobody else's, even after it was freed.
  Status pin(Addr address);
  void unpin(Addr address);
  // The stream is about to be destroyed.
  Status stream_gone(driver::Stream stream);
  Status empty_cache();  // during a capture: nothing, since it would have to wait
  Status set_budget(Bytes budget);

  Status begin_pool(PoolId id, StreamFilter matches);
  Status end_pool(PoolId id);
  Status release_pool(PoolId id);

  AllocatorStats stats();
  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    stats_.each([](Stat& stat) { stat.reset_peak(); });
  }
  void reset_accumulated() {
    const std::lock_guard lock(mutex_);
    stats_.each([](Stat& stat) { stat.reset_accumulated(); });
    stats_.retries = stats_.out_of_memory = 0;
  }
  std::vector<PieceInfo> pieces();
  void record_history(std::uint64_t capacity, ContextCallback context);
  std::vector<AllocationRecord> history() {
    const std::lock_guard lock(mutex_);
    return history_.events();
  }

 private:
  struct Pool {
    PoolId id;
    std::unique_ptr<MemoryPool> memory;
    int users = 1;        // captures and graphs; 0: goes when its blocks are gone
    bool common = false;  // everyone's
  };
  struct Place {
    std::uint32_t pool = 0;
    packing::BlockId block = 0;
  };
  struct Capture {
    PoolId id;
    StreamFilter matches;
  };
  struct LastUse {  // of a block that was freed while other streams used it
    driver::Event event;
    Addr address;
    std::uint16_t tag;
  };

  Allocator(driver::Driver& driver, const AllocatorOptions& options)
      : driver_(driver), options_(options), clock_(driver) {}

  Result<std::uint32_t> make_pool(PoolId id);
  std::uint32_t pool_for(driver::Stream stream, Bytes size);
  Pool* find_pool(PoolId id);
  [[nodiscard]] bool capturing() const { return !captures_.empty(); }

  Result<packing::BlockId> place_slowly(Pool& pool, packing::Request request);
  // What there is towards memory when there is none, and one step of the ladder.
  [[nodiscard]] packing::Shortage shortage(const Pool& pool, std::uint16_t tag, bool apart);
  Status recover(Pool& pool, packing::Request& request, packing::Recovery step);
  [[nodiscard]] bool takes_over(const Pool& pool) const {
    return pool.id == PoolId{} && !capturing();
  }
  Status take_over(Pool& pool, std::uint16_t tag, bool wait);
  Result<packing::BlockId> stitch(Pool& pool, packing::Request& request,
                                  std::vector<packing::Piece> pieces);
  Status grow(Pool& pool, const packing::Decision& decision, std::uint16_t tag);
  Status drop_old_ranges(Pool& pool);
  Status trim();
  void tell_trimmed(const Pool& pool, const MemoryPool::Trimmed& trimmed);
  Status out_of_memory(Bytes size);

  Status defer(Addr address);
  void complete_if_unused(Addr address);
  void defer_again();
  Status collect(bool wait);
  void complete(Addr address);
  Result<Place*> live(Addr address);  // its place, if it was not freed
  void note(AllocationEvent event, Addr address, Bytes bytes, Bytes requested,
            driver::Stream stream, PoolId pool, std::uint64_t context = 0);
  [[nodiscard]] std::uint64_t context_of(AllocationEvent event);
  void list_pieces(const Pool& pool, std::vector<PieceInfo>& out);

  driver::Driver& driver_;
  AllocatorOptions options_;
  std::mutex mutex_;
  StreamClock clock_;
  // [0] is everyone's, and so is [1] where small requests are kept apart; released ones keep their
  // place, without memory.
  std::vector<Pool> pools_;
  std::vector<Capture> captures_;
  FlatMap<Place> blocks_;                                       // by address
  std::unordered_map<Addr, std::vector<std::uint16_t>> users_;  // other streams of live blocks
  std::unordered_map<Addr, int> awaited_;  // freed blocks: events until it is free
  std::unordered_map<Addr, int> pins_;
  std::deque<LastUse> pending_;
  // Freed in a capture, in which no event can be recorded, or where recording one failed.
  std::vector<Addr> deferred_;
  Bytes reserved_ = 0;
  AllocatorStats stats_;
  AllocationHistory history_;
  ContextCallback context_;
  std::atomic<bool> history_on_{false};
};

}  // namespace penstock::engine
