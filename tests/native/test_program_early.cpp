// SPDX-License-Identifier: Apache-2.0
// Pages that are mapped while they are on their way: the work that needs them is given meanwhile,
// and whatever else runs finds the data that belongs there, or faults.  Forked, since a fault is
// the end.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "doctest/doctest.h"
#include "driver/forwarding.hpp"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;
using std::chrono::milliseconds;

// A link that takes so long for every copy, once slow() was called.
class SlowLink : public driver::ForwardingDriver {
 public:
  explicit SlowLink(driver::HostDriver& device) : ForwardingDriver(device), device_(device) {}
  void slow(milliseconds each) { each_ = each; }
  void hold(bool held) { held_ = held; }  // what comes in does not arrive, for 5 s
  Status copy_out_changed(void* to, Addr from, Bytes size, driver::Fingerprint* fingerprint,
                          bool still, driver::Stream stream) override {
    ++leaving_;
    PENSTOCK_TRY(device_.launch(stream, [each = each_] { std::this_thread::sleep_for(each); }));
    PENSTOCK_TRY(ForwardingDriver::copy_out_changed(to, from, size, fingerprint, still, stream));
    return device_.launch(stream, [this] { --leaving_; });
  }
  Status host_free(void* pointer) override {
    freed_while_leaving_ += leaving_ > 0;
    while (leaving_ > 0) std::this_thread::yield();
    return ForwardingDriver::host_free(pointer);
  }
  Status copy_in(Addr to, const void* from, Bytes size, driver::Stream stream) override {
    ++begun_;
    PENSTOCK_TRY(device_.launch(stream, [this] {
      for (int i = 0; held_ && i < 5000; ++i) std::this_thread::sleep_for(milliseconds(1));
    }));
    if (each_.count() > 0) {
      PENSTOCK_TRY(device_.launch(stream, [each = each_] { std::this_thread::sleep_for(each); }));
    }
    PENSTOCK_TRY(ForwardingDriver::copy_in(to, from, size, stream));
    return device_.launch(stream, [this] { ++copied_; });
  }
  [[nodiscard]] int copied() const { return copied_; }
  [[nodiscard]] int under_way() const { return begun_ - copied_; }
  [[nodiscard]] int freed_while_leaving() const { return freed_while_leaving_; }

 private:
  driver::HostDriver& device_;
  milliseconds each_{0};
  std::atomic<bool> held_{false};
  std::atomic<int> begun_{0};
  std::atomic<int> copied_{0};
  std::atomic<int> leaving_{0};
  int freed_while_leaving_ = 0;
};

// Twice as much as fits, in use by nobody; the first has left.
struct Slow {
  Slow()
      : bench({.streams = 3, .over = [this](driver::HostDriver& device) {
                 auto made = std::make_unique<SlowLink>(device);
                 link = made.get();
                 return made;
               }}) {
    for (unsigned i = 0; i < 40; ++i) {
      tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
    link->slow(milliseconds(200));
  }
  // The first by work that names it.
  void demand() { bench.work(bench.stream(0), {&tensors[0]}, {}, 0); }
  // And by work that does not, after so long.
  void reach(driver::Stream stream, milliseconds after) {
    PENSTOCK_REQUIRE_OK(bench.device().launch(stream, [was = tensors[0], after, wrong = wrong] {
      std::this_thread::sleep_for(after);
      const auto* words = reinterpret_cast<const volatile std::uint64_t*>(was.address);
      for (Bytes i = 0; i < was.bytes / 8; ++i) *wrong += words[i] != was.value;
    }));
  }
  void announce(driver::Stream stream) {
    PENSTOCK_REQUIRE_OK(bench.program().announce(stream, {}, true));
  }
  std::int64_t finish() {
    PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
    return *wrong + bench.wrong();
  }

  SlowLink* link = nullptr;
  Bench bench;
  std::vector<Tensor> tensors;
  std::shared_ptr<std::atomic<std::int64_t>> wrong = std::make_shared<std::atomic<std::int64_t>>(0);
};

TEST_CASE("program: work is given while its page is on its way, and later work waits for that") {
  Slow slow;
  const int before = slow.link->copied();
  slow.demand();
  CHECK(slow.link->copied() == before);
  slow.announce(slow.bench.stream(1));  // another stream, and work that names nothing
  slow.reach(slow.bench.stream(1), milliseconds(0));
  slow.bench.program().given(slow.bench.stream(1));
  CHECK(slow.link->copied() == before);
  CHECK(slow.finish() == 0);
  CHECK(slow.link->copied() > before);
}

TEST_CASE("program: work that was announced before and is given later finds a page that is there") {
  Slow slow;
  slow.announce(slow.bench.stream(1));
  slow.demand();
  slow.reach(slow.bench.stream(1), milliseconds(0));
  slow.bench.program().given(slow.bench.stream(1));
  CHECK(slow.finish() == 0);
}

TEST_CASE("program: where another device reaches the memory a page is mapped when it has arrived") {
  Slow slow;
  (void)slow.bench.program().pager().share_with(1);  // which the emulated one cannot carry out
  const int before = slow.link->copied();
  slow.demand();
  CHECK(slow.link->copied() > before);
  CHECK(slow.finish() == 0);
}

TEST_CASE("program: a page is mapped early although a thread with a stream of its own has ended") {
  Slow slow;
  slow.link->slow(milliseconds(0));
  std::thread([&] {
    slow.bench.work(driver::kPerThreadStream, {&slow.tensors[38]}, {}, 0);
  }).join();
  for (std::size_t i = 0; i < 80; ++i) {
    slow.bench.work(slow.bench.stream(0), {&slow.tensors[30 + i % 9]}, {}, 0);
  }
  PENSTOCK_REQUIRE_OK(slow.bench.device().synchronize_device());
  slow.link->slow(milliseconds(200));
  const int before = slow.link->copied();
  slow.demand();
  CHECK(slow.link->copied() == before);
  CHECK(slow.finish() == 0);
  CHECK(slow.link->copied() > before);
}

// What makes room is freed, and the stream that waits for its copy is none of the allocator's.
TEST_CASE(
    "program: the host memory of a page that made room stays until that has been copied out") {
  Slow slow;
  Bench& bench = slow.bench;
  slow.link->slow(milliseconds(0));
  const Tensor small = bench.make(kGranule / 8, bench.stream(0), 7);  // its memory lies elsewhere
  // It leaves: others are used again and again.
  for (std::size_t i = 0; i < 80; ++i) {
    bench.work(bench.stream(0), {&slow.tensors[i * i % 41 % 40]}, {}, 0);
  }
  PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
  slow.link->slow(milliseconds(200));
  const int before = slow.link->copied();
  bench.work(bench.stream(1), {&small}, {}, 0);
  CHECK(slow.link->copied() == before);
  for (const Tensor& tensor : slow.tensors) bench.drop(tensor);
  PENSTOCK_REQUIRE_OK(bench.program().allocator().empty_cache());
  CHECK(slow.link->freed_while_leaving() == 0);
  CHECK(slow.finish() == 0);
  CHECK(slow.link->copied() > before);
}

TEST_CASE("program: who waits for the work that was given does not wait for pages under way") {
  Slow slow;
  Bench& bench = slow.bench;
  const auto use = [&](std::size_t i) {
    bench.work(bench.stream(0), {&slow.tensors[i % 40]}, {}, 0);
  };
  slow.link->slow(milliseconds(0));
  std::size_t next = 0;
  while (next < 160) use(next++);  // the order is learned
  PENSTOCK_REQUIRE_OK(bench.device().synchronize_device());
  slow.link->hold(true);
  const auto ahead = [&] { return bench.program().pager().stats().counters.prefetched_pages; };
  const auto before = ahead();
  while (ahead() == before && next < 200) use(next++);
  REQUIRE(ahead() > before);
  while (slow.link->under_way() == 0) std::this_thread::yield();
  auto over = std::make_shared<std::atomic<bool>>(false);
  slow.announce(bench.stream(0));
  PENSTOCK_REQUIRE_OK(bench.device().launch(bench.stream(0), [over] { *over = true; }));
  bench.program().given(bench.stream(0));
  PENSTOCK_REQUIRE_OK(bench.program().pager().wait_for_work());
  CHECK(*over);
  CHECK(slow.link->under_way() > 0);
  slow.link->hold(false);
  CHECK(slow.finish() == 0);
  CHECK(slow.link->under_way() == 0);
}

// What takes its time on the second stream, and names nothing.
struct Unnamed {
  explicit Unnamed(Slow& given) : slow(given) { slow.link->slow(milliseconds(0)); }
  void announce() { slow.announce(stream); }
  void give() {
    PENSTOCK_REQUIRE_OK(slow.bench.device().launch(stream, [over = over] {
      std::this_thread::sleep_for(milliseconds(100));
      *over = true;
    }));
    slow.bench.program().given(stream);
  }
  Slow& slow;
  driver::Stream stream = slow.bench.stream(1);
  std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

TEST_CASE("program: who waits for work waits for what was announced before others waited") {
  Slow slow;
  Unnamed work(slow);
  work.announce();
  PENSTOCK_REQUIRE_OK(slow.bench.program().pager().wait_for_work());  // as another thread would
  work.give();
  PENSTOCK_REQUIRE_OK(slow.bench.program().pager().wait_for_work());
  CHECK(*work.over);
  CHECK(slow.finish() == 0);
}

TEST_CASE("program: who waits for work waits for a destroyed stream's") {
  for (const bool shared : {false, true}) {
    Slow slow;
    if (shared) (void)slow.bench.program().pager().share_with(1);
    Unnamed work(slow);
    work.announce();
    work.give();
    PENSTOCK_REQUIRE_OK(slow.bench.program().stream_gone(work.stream));
    PENSTOCK_REQUIRE_OK(slow.bench.program().pager().wait_for_work());
    CHECK(*work.over);
    CHECK(slow.finish() == 0);
  }
}

#if !defined(__SANITIZE_THREAD__)  // a forked child has none of its threads
TEST_CASE("program: a page is not mapped before it arrives while work runs that may reach it") {
  for (const bool destroyed : {false, true}) {
    CAPTURE(destroyed);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    constexpr int kFault = 8;
    if (child == 0) {
      std::signal(SIGSEGV, [](int) { _exit(kFault); });
      Slow slow;
      const driver::Stream other = slow.bench.stream(1);
      slow.announce(other);
      slow.reach(other, milliseconds(100));
      slow.bench.program().given(other);
      if (destroyed) PENSTOCK_REQUIRE_OK(slow.bench.program().stream_gone(other));
      slow.demand();
      _exit(slow.finish() == 0 ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == kFault);
  }
}
#endif

}  // namespace
}  // namespace penstock::testing
