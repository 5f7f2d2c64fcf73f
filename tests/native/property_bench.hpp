// SPDX-License-Identifier: Apache-2.0
// What the tests of programs at random share: blocks with a shadow that says what each word has to
// be, kernels that compare and write both, accesses that may fault without ending the process, and
// seeds.  PENSTOCK_PROPERTY_ACCESSES is how many hidden accesses a test makes,
// PENSTOCK_PROPERTY_SEED runs that seed alone, again and again: the choices are the same each time,
// which thread comes first is not.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"

namespace penstock::testing::property {

using driver::Stream;
using Word = std::uint64_t;

// Draws; the same for the same seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// An access to one word that may fault: by way of a pipe, for which the kernel says EFAULT where
// the process itself would get a signal.  Sanitizers do not see it.
class Probe {
 public:
  Probe() { failed_ = pipe(ends_) != 0; }
  ~Probe() {
    if (failed_) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  std::optional<Word> read(Addr address) {
    if (failed_ || syscall(SYS_write, ends_[1], address, sizeof(Word)) != sizeof(Word)) return {};
    Word value = 0;
    if (::read(ends_[0], &value, sizeof value) != sizeof value) std::abort();
    return value;
  }
  bool write(Addr address, Word value) {
    if (failed_ || ::write(ends_[1], &value, sizeof value) != sizeof value) return false;
    if (syscall(SYS_read, ends_[0], address, sizeof(Word)) == sizeof(Word)) return true;
    if (::read(ends_[0], &value, sizeof value) != sizeof value) std::abort();  // it is still there
    return false;
  }

 private:
  int ends_[2] = {-1, -1};
  bool failed_ = false;
};

// What became of the accesses of one run, and the first thing that went wrong in it.
class Tally {
 public:
  std::atomic<std::int64_t> right{0}, faults{0}, wrong{0};  // hidden accesses
  std::atomic<std::int64_t> seen_wrong{0};                  // words of work that was announced

  [[nodiscard]] std::int64_t hidden() const { return right + faults + wrong; }
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = what;
    failed_ = true;
  }
  // An engine call that has to succeed.
  bool ok(const Status& status, const char* what) {
    if (!status.ok()) fail(std::string(what) + ": " + status.message());
    return status.ok();
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string failure_;
};

// A block of the program.  Its shadow is read and written by the same work, in the same order, as
// the block itself, and by nobody else while there is such work.
struct Block {
  Addr address = 0;
  std::optional<Stream> home;  // where it was allocated; nothing: that stream is gone
  Stream last{};               // whose work touched it last
  bool shared = false;         // by threads, which only read it
  std::shared_ptr<std::vector<Word>> shadow;

  [[nodiscard]] Bytes bytes() const { return shadow->size() * sizeof(Word); }
};

// Work of a kernel on a block that it has announced: it must be there.
inline void check_words(const Block& block, Tally& tally) {
  const std::vector<Word>& shadow = *block.shadow;
  const auto* words = reinterpret_cast<const Word*>(block.address);
  if (std::memcmp(words, shadow.data(), block.bytes()) == 0) return;
  for (std::size_t i = 0; i < shadow.size(); ++i) {
    if (words[i] == shadow[i]) continue;
    if (++tally.seen_wrong > 1) continue;
    tally.fail("announced work read " + std::to_string(words[i]) + " in word " + std::to_string(i) +
               " of " + std::to_string(shadow.size()) + ", which holds " +
               std::to_string(shadow[i]));
  }
}

inline void write_words(const Block& block, Word value) {
  std::vector<Word>& shadow = *block.shadow;
  for (std::size_t i = 0; i < shadow.size(); ++i) shadow[i] = value + i * 0x9E3779B97F4A7C15u;
  std::memcpy(reinterpret_cast<void*>(block.address), shadow.data(), block.bytes());
}

struct Hidden {
  std::uint64_t seed = 0;
  std::uint64_t accesses = 0;                // one by one over the whole block
  const std::atomic<bool>* until = nullptr;  // again and again until this is so, or for kLongest
  bool writes = false;
  bool lingers = false;  // so that pages move between one access and the next
  bool may_be_wrong = false;
};

// Nobody waits for longer for what others do: who is waited for may wait for this one.
inline constexpr std::chrono::milliseconds kLongest{5};

inline void wait_for(const std::atomic<bool>& it) {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!it && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Work of a kernel on a block that nobody named: right, or it faults.
inline void reach_once(const Block& block, const Hidden& how, Random& random, Tally& tally) {
  thread_local Probe probe;
  std::vector<Word>& shadow = *block.shadow;
  for (std::uint64_t i = 0; i < how.accesses; ++i) {
    const std::size_t at = (shadow.size() * i / how.accesses + random.below(8)) % shadow.size();
    const Addr address = block.address + at * sizeof(Word);
    if (how.writes && random.one_in(2)) {
      const Word value = random.bits();
      if (probe.write(address, value)) {
        shadow[at] = value;
        ++tally.right;
      } else {
        ++tally.faults;
      }
    } else if (const std::optional<Word> got = probe.read(address); !got) {
      ++tally.faults;
    } else if (*got == shadow[at]) {
      ++tally.right;
    } else {
      ++tally.wrong;
      if (!how.may_be_wrong) {
        tally.fail("a hidden access read " + std::to_string(*got) + " in word " +
                   std::to_string(at) + ", which holds " + std::to_string(shadow[at]));
      }
    }
    if (how.lingers && random.one_in(8)) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(60)));
    }
  }
}

inline void reach(const Block& block, const Hidden& how, Tally& tally) {
  Random random(how.seed);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  for (;;) {
    reach_once(block, how, random, tally);
    if (how.until == nullptr || *how.until || std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(60)));
  }
}

// A fault of announced work ends the process, as does a check of the code's own: it says first
// which seed that was.
class FaultReport {
 public:
  FaultReport(const char* test, std::uint64_t seed) {
    std::snprintf(text_, sizeof text_,
                  "\npenstock: the process ends in announced work; again with "
                  "PENSTOCK_PROPERTY_SEED=%llu native_tests -tc='%s'\n",
                  static_cast<unsigned long long>(seed), test);
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
      (void)!::write(STDERR_FILENO, text_, std::strlen(text_));
      restore();  // the access is made again, and ends it
      if (signal == SIGABRT) (void)raise(signal);
    };
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      (void)sigaction(kSignals[i], &action, &before_[i]);
    }
  }
  ~FaultReport() { restore(); }
  FaultReport(const FaultReport&) = delete;
  FaultReport& operator=(const FaultReport&) = delete;

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGABRT};
  static void restore() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      (void)sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  static inline char text_[256] = {};
  static inline std::array<struct sigaction, kSignals.size()> before_ = {};
};

inline std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Runs seed after seed until there were `accesses` hidden ones, or as many as the variable says.
// `run` is one program; what it counts is added up in `total`.  Stops at the first failure.
inline void run_seeds(const char* test, std::int64_t accesses,
                      const std::function<void(std::uint64_t, Tally&)>& run, Tally& total) {
  const std::int64_t wanted = number_of("PENSTOCK_PROPERTY_ACCESSES", accesses);
  const std::int64_t only = number_of("PENSTOCK_PROPERTY_SEED", 0);
  const std::string name = test;
  int seeds = 0;
  std::uint64_t seed = only > 0 ? static_cast<std::uint64_t>(only) : 1;
  do {
    Tally tally;
    {
      const FaultReport report(test, seed);
      run(seed, tally);
    }
    total.right += tally.right;
    total.faults += tally.faults;
    total.wrong += tally.wrong;
    total.seen_wrong += tally.seen_wrong;
    if (tally.failed()) {
      FAIL_CHECK(tally.failure(), "; ", tally.wrong.load(), " hidden and ", tally.seen_wrong.load(),
                 " announced words were wrong; again with PENSTOCK_PROPERTY_SEED=", seed,
                 " native_tests -tc='", name, "'");
      return;
    }
    ++seeds;
    if (only <= 0) ++seed;
  } while (total.hidden() < wanted);
  MESSAGE(name, ": ", seeds, " programs, hidden accesses: ", total.right.load(), " right, ",
          total.faults.load(), " faults, ", total.wrong.load(), " wrong");
}

}  // namespace penstock::testing::property
