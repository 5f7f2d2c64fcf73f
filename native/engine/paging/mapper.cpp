// SPDX-License-Identifier: Apache-2.0
#include "engine/paging/mapper.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace penstock::engine {
namespace {

// Enough for the link to have the next copy while one page is mapped (60 to 110 us) and another is
// unmapped; more only makes a page that is demanded wait behind copies that are not.  Not swept.
constexpr std::size_t kMostPages = 6;
constexpr Bytes kMostMoveBytes = 128 * kMiB;
// How often it is asked whether uses and copies are over, which nothing tells the host.
constexpr std::chrono::microseconds kPoll{20};
// For as long as a page may be on its way a caller spins, as cudaDeviceSynchronize() does. A core
// that sleeps at every page slows down, or is another one next time, and the launching thread is
// what many models wait for.
constexpr std::chrono::milliseconds kSpin{2};

}  // namespace

Mapper::Mapper(driver::Driver& driver, Bytes chunk_bytes, PageCopies& copies, Timeline& in,
               Timeline& out)
    : driver_(driver),
      chunk_bytes_(chunk_bytes),
      copies_(copies),
      in_(in),
      out_(out),
      most_(std::clamp<std::size_t>(kMostMoveBytes / chunk_bytes, 1, kMostPages)),
      owner_(getpid()) {
  if (driver_.modelled_time() == nullptr) {
    thread_ = std::make_unique<std::thread>([this] { work(); });
  }
}

Mapper::~Mapper() {
  if (!here()) {  // a child has no thread to join, and what that waits for waits for it
    static_cast<void>(thread_.release());
    static_cast<void>(signals_.release());
    return;
  }
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    signals_->wake.notify_one();
  }
  thread_->join();
}

Status Mapper::submit(Move& move) {
  if (!here()) {
    return invalid("a forked child moves no pages of its parent's; start it before the pager");
  }
  // Here, since the caller still reads the move when the mapper has it.
  std::sort(move.out.begin(), move.out.end(),
            [](const Move::Out& a, const Move::Out& b) { return a.address < b.address; });
  const std::lock_guard lock(mutex_);
  moves_.push_back(&move);
  if (!thread_ && moves_.size() == 1) time_ = std::max(time_, *driver_.modelled_time());
  signals_->wake.notify_one();
  if (!thread_) catch_up(nullptr);
  return {};
}

void Mapper::hurry(Move& move) {
  if (move.demanded.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  signals_->wake.notify_one();
}

std::chrono::nanoseconds& Mapper::waited() {
  thread_local std::chrono::nanoseconds waited{};
  return waited;
}

void Mapper::wait(Move& move, std::optional<std::span<const Mark>> quiet) {
  using Clock = std::chrono::steady_clock;
  hurry(move);
  if (quiet) {
    const std::lock_guard lock(mutex_);
    move.quiet = quiet;
    signals_->wake.notify_one();
  }
  const auto began = Clock::now();
  if (thread_) {
    while (!over(move) && Clock::now() < began + kSpin) std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  if (!thread_) catch_up(&move);
  signals_->done.wait(lock, [&] { return over(move); });
  waited() += Clock::now() - began;
}

void Mapper::keep_up() {
  if (!thread_) catch_up(nullptr);
}

// Where time is modelled: up to now, or until this move is over, for which the caller waits.
void Mapper::catch_up(const Move* until) {
  std::int64_t& clock = *driver_.modelled_time();
  const std::int64_t now = clock;
  clock = time_;
  std::unique_lock lock(mutex_, std::defer_lock);  // the caller has it, and there is no other
  std::int64_t idle = 0;
  while (until != nullptr ? !over(*until) : clock < now && !moves_.empty()) {
    if (step(lock)) {
      idle = 0;
      continue;
    }
    // A use or a copy may be said to take years, and is not asked after every 20 us of them.
    const auto poll = std::max<std::int64_t>(std::chrono::nanoseconds(kPoll).count(), idle / 256);
    idle += poll;
    clock += std::min(poll, std::numeric_limits<std::int64_t>::max() - clock);
  }
  time_ = std::max(clock, now);
  clock = until != nullptr ? time_ : now;
}

void Mapper::work() {
  std::unique_lock lock(mutex_);
  while (!closing_ || !moves_.empty()) {
    if (moves_.empty()) {
      signals_->wake.wait(lock);
    } else if (!step(lock)) {
      signals_->wake.wait_for(lock, kPoll);
    }
  }
}

bool Mapper::ready(std::span<const Mark> marks) {
  const auto all = guarded([&]() -> Result<bool> {
    return std::all_of(marks.begin(), marks.end(), [](const Mark& mark) {
      const Result<bool> reached = mark.reached();
      return !reached.ok() || reached.value();  // a failure shows when it is waited for
    });
  });
  return all.ok() && all.value();
}

// Not where the driver cannot tell, unlike ready(): nothing would wait for it then.
bool Mapper::quiet(const Move& move) {
  const auto all = guarded([&]() -> Result<bool> {
    return std::ranges::all_of(*move.quiet, [](const Mark& mark) {
      const Result<bool> reached = mark.reached();
      return reached.ok() && reached.value();
    });
  });
  return all.ok() && all.value();
}

bool Mapper::may_finish(Move& move) {
  if (ready(std::span(&move.arrival, 1))) return true;
  move.early = move.quiet && quiet(move);
  return move.early;
}

// What somebody waits for first, then what has arrived, then what is ahead of its time.
Move* Mapper::choose() {
  const bool room = under_way_ < most_;
  const auto first = [&](bool started, bool demanded) -> Move* {
    for (Move* const move : moves_) {
      if (move->started != started || (demanded && !move->demanded)) continue;
      if (started ? may_finish(*move) : ready(move->busy)) return move;
    }
    return nullptr;
  };
  Move* move = room ? first(false, true) : nullptr;
  if (move == nullptr) move = first(true, false);
  if (move == nullptr && room) move = first(false, false);
  return move;
}

bool Mapper::step(std::unique_lock<std::mutex>& lock) {
  Move* const move = choose();
  if (move == nullptr) return false;
  const bool held = lock.owns_lock();
  if (held) lock.unlock();
  const bool over = move->started ? finish(*move) : begin(*move);
  if (held) lock.lock();
  if (over) {
    moves_.erase(std::find(moves_.begin(), moves_.end(), move));
    move->finished.store(true, std::memory_order_release);
    signals_->done.notify_all();
  }
  return true;
}

bool Mapper::begin(Move& move) {
  move.status = guarded([&]() -> Status {
    for (const Mark& mark : move.busy) PENSTOCK_TRY(mark.synchronize());
    PENSTOCK_TRY(unmap(move));
    PENSTOCK_TRY(copy_out(move));
    return copy_in(move);
  });
  if (!move.status.ok()) {
    undo(move);
    return true;
  }
  move.left = true;
  move.started = true;
  under_way_ += std::max(move.in.size(), move.out.size());
  return false;
}

bool Mapper::finish(Move& move) {
  under_way_ -= std::max(move.in.size(), move.out.size());
  move.status = guarded([&]() -> Status {
    if (!move.early) PENSTOCK_TRY(move.arrival.synchronize());
    return map(move);
  });
  // What comes into the chunks next must not be copied over.
  if (!move.status.ok() && move.early) (void)move.arrival.synchronize();
  return true;
}

// Victims that were neighbours in a range as well lose their addresses by one call: ranges that lie
// next to each other by chance are not one reservation.
Status Mapper::unmap(Move& move) {
  for (std::size_t i = 0; i < move.out.size();) {
    std::size_t end = i + 1;
    if (move.out[i].mapped) {
      const auto follows = [&] {
        return end < move.out.size() && move.out[end].mapped &&
               move.out[end].range == move.out[i].range &&
               move.out[end].address == move.out[end - 1].address + chunk_bytes_;
      };
      while (follows()) ++end;
      PENSTOCK_TRY(driver_.unmap(move.out[i].address, (end - i) * chunk_bytes_));
      for (std::size_t k = i; k < end; ++k) move.out[k].mapped = false;
    }
    i = end;
  }
  return {};
}

Status Mapper::copy_out(Move& move) {
  bool copied = false;
  for (const Move::Out& out : move.out) {
    if (out.copy == Move::Copy::kNone) continue;
    copied = true;
    if (out.copy == Move::Copy::kPlain) {
      PENSTOCK_TRY(copies_.out(out.host, out.own, out.bytes, out.parts, out_.stream()));
    } else {
      PENSTOCK_TRY(driver_.copy_out_changed(out.host, out.own, out.bytes, out.fingerprint,
                                            out.copy == Move::Copy::kIfChanged, out_.stream()));
    }
  }
  if (!copied) return {};
  PENSTOCK_ASSIGN(const Tick tick, out_.record());
  move.arrival = {&out_, tick};
  return {};
}

Status Mapper::copy_in(Move& move) {
  std::vector<PageCopies::In> copied;
  for (const Move::In& in : move.in) {
    if (in.copied()) copied.push_back({in.own, in.host, in.bytes, in.parts});
  }
  if (copied.empty()) return {};
  PENSTOCK_TRY(move.arrival.make_wait(in_.stream()));
  move.left = true;
  PENSTOCK_ASSIGN(move.arrival, copies_.in(copied, in_));
  return {};
}

// One set_access for the stretch: it costs 26 us idle and 145 to 190 us while a kernel runs.
Status Mapper::map(Move& move) {
  std::size_t mapped = 0;
  Status status;
  for (; status.ok() && mapped < move.in.size(); mapped += status.ok()) {
    status = driver_.map(move.in[mapped].address, chunk_bytes_, move.in[mapped].chunk);
  }
  if (status.ok() && mapped > 0) {
    status = driver_.set_access(move.in.front().address, mapped * chunk_bytes_);
  }
  if (!status.ok() && mapped > 0) {
    (void)driver_.unmap(move.in.front().address, mapped * chunk_bytes_);
  }
  return status;
}

// Nothing that was given to a stream is on its way when this returns.
void Mapper::undo(Move& move) {
  (void)driver_.synchronize(out_.stream());
  (void)driver_.synchronize(in_.stream());
  copies_.synchronize();
  if (move.left) return;  // what was copied in has taken their place
  for (Move::Out& out : move.out) {
    if (out.mapped) continue;
    out.mapped = driver_.map_with_access(out.address, chunk_bytes_, out.chunk).ok();
  }
}

}  // namespace penstock::engine
