// SPDX-License-Identifier: Apache-2.0
// Work that reaches what nobody named, under the default safety and with the host ahead of the
// device: it finds the data that belongs there, or it faults.  Forked, since a fault is the end.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "doctest/doctest.h"
#include "driver/forwarding.hpp"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;

// Ranges begin where the driver likes: a granule behind a multiple of a page's size.
class Unaligned : public driver::ForwardingDriver {
 public:
  static constexpr Bytes kPage = 4 * kGranule;
  explicit Unaligned(driver::Driver& device) : ForwardingDriver(device) {}
  ~Unaligned() override {
    for (const Addr address : between_) (void)device_.unreserve(address, kGranule);
  }
  Result<Addr> reserve(Bytes size) override {  // below the last one, in the emulated GPU
    Addr last = 0;
    do {
      PENSTOCK_ASSIGN(last, device_.reserve(kGranule));
      between_.push_back(last);
    } while (last % kPage != kGranule);
    return device_.reserve(size);
  }

 private:
  std::vector<Addr> between_;
};

#if !defined(__SANITIZE_THREAD__)  // a forked child has none of its threads

enum Outcome { kRight = 0, kOther = 7, kFault = 8 };

// A kernel that names what it reads and writes, and reads another tensor besides.
void work_hidden(Bench& bench, const std::vector<const Tensor*>& reads,
                 const std::vector<Tensor*>& writes, const Tensor& hidden, bool opaque,
                 std::shared_ptr<std::atomic<std::int64_t>> wrong) {
  const driver::Stream stream = bench.stream(0);
  std::vector<engine::TouchedAddress> touched;
  for (const Tensor* tensor : reads) touched.push_back({tensor->address, 0, true});
  for (const Tensor* tensor : writes) touched.push_back({tensor->address, 0, true});
  PENSTOCK_REQUIRE_OK(bench.program().announce(stream, touched, opaque, 50));
  std::vector<Tensor> out;
  for (Tensor* tensor : writes) {
    tensor->value = 3;
    out.push_back(*tensor);
  }
  PENSTOCK_REQUIRE_OK(bench.device().launch(stream, [out, hidden, wrong] {
    const auto* words = reinterpret_cast<const volatile std::uint64_t*>(hidden.address);
    for (Bytes i = 0; i < hidden.bytes / 8; ++i) *wrong += words[i] != hidden.value;
    for (const Tensor& tensor : out) {
      auto* at = reinterpret_cast<std::uint64_t*>(tensor.address);
      for (Bytes i = 0; i < tensor.bytes / 8; ++i) at[i] = 3;
    }
  }));
  bench.program().given(stream);
}

void pause(Bench& bench, int ms) {
  PENSTOCK_REQUIRE_OK(bench.device().launch(
      bench.stream(0), [ms] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }));
}

Outcome in_child(const std::function<std::int64_t()>& wrong) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Not the default action: sanitizers and doctest have handlers of their own.
    std::signal(SIGSEGV, [](int) { _exit(kFault); });
    _exit(wrong() == 0 ? kRight : kOther);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return static_cast<Outcome>(WEXITSTATUS(status));
}

TEST_CASE("program: hidden work behind work that takes its time finds no other data") {
  for (const bool opaque : {false, true}) {
    CAPTURE(opaque);
    const Outcome outcome = in_child([opaque] {
      auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
      Bench bench({});
      std::vector<Tensor> tensors;
      for (unsigned i = 0; i < 40; ++i) {
        tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
      }
      PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
      bench.work(bench.stream(0), {&tensors[0]}, {}, 0);
      pause(bench, 100);
      bench.work(bench.stream(0), {&tensors[0]}, {}, 0);
      for (std::size_t i = 1; i < 30; ++i) bench.work(bench.stream(0), {&tensors[i]}, {}, 0);
      work_hidden(bench, {}, {}, tensors[0], opaque, wrong);
      PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
      return *wrong + bench.wrong();
    });
    CHECK(outcome == kFault);
  }
}

// Its block was freed behind the work, as PyTorch does: what it held stays until that is over.
TEST_CASE("program: hidden work finds what was freed after it was given") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench({.streams = 2});
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 40; ++i) {
      tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    // The first is the one that was not used for longest, and nothing repeats itself.
    bench.work(bench.stream(0), {&tensors[0]}, {}, 0);
    for (std::size_t i = 0; i < 19; ++i) {
      bench.work(bench.stream(0), {&tensors[21 + 7 * i % 19]}, {}, 0);
    }
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    pause(bench, 100);
    work_hidden(bench, {&tensors[39]}, {}, tensors[0], false, wrong);
    bench.drop(tensors[0]);
    for (std::size_t i = 1; i < 4; ++i) bench.work(bench.stream(1), {&tensors[i]}, {}, 0);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    return *wrong + bench.wrong();
  });
  CHECK(outcome == kRight);
}

// What it reads was pinned as long as it was given, as a texture's memory is; its holder has gone.
TEST_CASE("program: hidden work finds what was pinned when it was given") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench({.streams = 2});
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 40; ++i) {
      tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    const auto texture = bench.program().pin(tensors[0].address);
    PENSTOCK_REQUIRE_OK(texture.status());
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    pause(bench, 100);
    work_hidden(bench, {&tensors[39]}, {}, tensors[0], false, wrong);
    bench.program().unpin(texture.value());
    for (std::size_t i = 1; i < 39; ++i) bench.work(bench.stream(1), {&tensors[i]}, {}, 0);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    return *wrong + bench.wrong();
  });
  CHECK(outcome == kRight);
}

// It had left before, and what is made in its place needs it back before that work has run.
TEST_CASE("program: hidden work finds what was freed after it was given, away from the device") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench({});
    const Tensor away = bench.make(8 * kGranule, bench.stream(0), 5);
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 30; ++i) {
      tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    pause(bench, 100);
    work_hidden(bench, {&tensors[29]}, {}, away, false, wrong);
    bench.drop(away);
    Tensor next = bench.make(8 * kGranule, bench.stream(0), 6);
    const bool there = next.address == away.address;
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    return *wrong + bench.wrong() + (there ? 0 : 1);
  });
  CHECK(outcome == kRight);
}

// What a kernel has read in pass after pass proves nothing of where it will find it.
TEST_CASE("program: a weight that a kernel reads unseen for long is not taken for another") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench({});
    Network network(bench, 16, 2 * kGranule + 8192);
    const auto forward = [&] {
      Tensor hidden = bench.make(kGranule / 2, bench.stream(0), 1);
      for (std::size_t i = 0; i < network.weights.size(); ++i) {
        Tensor next = bench.make(kGranule / 2, bench.stream(0), 2);
        if (i == 8) {
          work_hidden(bench, {&hidden, &network.weights[i]}, {&next}, network.weights[15], false,
                      wrong);
        } else {
          bench.work(bench.stream(0), {&hidden, &network.weights[i]}, {&next}, 3);
        }
        for (int k = 0; k < 6; ++k) bench.work(bench.stream(0), {&next}, {&next}, 4);
        bench.drop(hidden);
        hidden = next;
      }
      bench.drop(hidden);
    };
    for (int i = 0; i < 20; ++i) forward();
    PENSTOCK_REQUIRE_OK(bench.program().pager().resize(14 * kGranule));
    for (int i = 0; i < 3; ++i) forward();
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    return *wrong + bench.wrong();
  });
  CHECK(outcome != kOther);
}

// As the runtime of a language that compiles kernels: a kernel writes its address to a module's
// variable, and later ones read it there.
TEST_CASE("program: the smallest blocks are there for work that does not name them") {
  for (const bool before_paging : {false, true}) {
    CAPTURE(before_paging);
    const Outcome outcome = in_child([before_paging] {
      auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
      Bench bench({.budget = 64 * kGranule});
      const driver::Stream stream = bench.stream(0);
      std::vector<Tensor> tensors;
      Tensor runtime;
      if (before_paging) runtime = bench.make(512, stream, 77);
      for (unsigned i = 0; i < 200; ++i) tensors.push_back(bench.make(kGranule, stream, 100 + i));
      if (!before_paging) runtime = bench.make(512, stream, 77);
      for (int round = 0; round < 3; ++round) {
        for (const Tensor& tensor : tensors) bench.work(stream, {&tensor}, {}, 0);
        work_hidden(bench, {&tensors[0]}, {}, runtime, false, wrong);
      }
      PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
      return *wrong + bench.wrong();
    });
    CHECK(outcome == kRight);
  }
}

// A batch of a table's copy to the host, which names no address there, and another's from it.
TEST_CASE(
    "program: what a table names is that of the copy that brought it, whatever is beside it") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench({});
    const driver::Stream stream = bench.stream(0);
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 42; ++i) tensors.push_back(bench.make(kGranule, stream, 100 + i));
    bench.bring(stream, tensors[40].address, {tensors[1].address});
    const engine::TouchedAddress both[] = {{tensors[40].address, 8, false},
                                           {tensors[41].address, 8, true}};
    const engine::HeldAddress held{tensors[41].address, tensors[0].address};
    PENSTOCK_REQUIRE_OK(bench.program().announce(stream, both, false, 0, engine::WorkKind::kCopy,
                                                 std::span(&held, 1)));
    bench.program().given(stream);
    for (std::size_t i = 1; i < 40; ++i) bench.work(stream, {&tensors[i]}, {}, 0);
    work_hidden(bench, {&tensors[41]}, {}, tensors[0], false, wrong);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
    return *wrong + bench.wrong();
  });
  CHECK(outcome == kRight);
}

TEST_CASE("program: the smallest blocks are there wherever ranges begin") {
  const Outcome outcome = in_child([] {
    auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
    Bench bench(
        {.budget = 64 * Unaligned::kPage,
         .page_bytes = Unaligned::kPage,
         .over = [](driver::HostDriver& device) { return std::make_unique<Unaligned>(device); }});
    const driver::Stream stream = bench.stream(0);
    std::vector<Tensor> small, tensors;  // of one page and a half
    for (unsigned i = 0; i < 384; ++i) small.push_back(bench.make(1024, stream, i));
    for (unsigned i = 0; i < 80; ++i) {
      tensors.push_back(bench.make(Unaligned::kPage, stream, 1000 + i));
    }
    for (const Tensor& tensor : tensors) bench.work(stream, {&tensor}, {}, 0);
    for (const Tensor& each : small) work_hidden(bench, {}, {}, each, false, wrong);
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
    return *wrong + bench.wrong();
  });
  CHECK(outcome == kRight);
}

TEST_CASE("program: what hidden work writes before a page leaves is there when it comes back") {
  const Outcome outcome = in_child([] {
    Bench bench({});
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 40; ++i) {
      tensors.push_back(bench.make(kGranule, bench.stream(0), 100 + i));
    }
    Tensor& read = tensors[39];
    const driver::Stream stream = bench.stream(0);
    const engine::TouchedAddress touched{read.address, 0, false};  // it says that it only reads
    for (int round = 0; round < 3; ++round) {
      PENSTOCK_REQUIRE_OK(bench.program().announce(stream, std::span(&touched, 1)));
      read.value = 900 + static_cast<unsigned>(round);
      PENSTOCK_REQUIRE_OK(bench.device().launch(stream, [was = read] {
        auto* words = reinterpret_cast<std::uint64_t*>(was.address);
        for (Bytes i = 0; i < was.bytes / 8; ++i) words[i] = was.value;
      }));
      bench.program().given(stream);
      for (std::size_t i = 0; i < 30; ++i) bench.work(stream, {&tensors[i]}, {}, 0);
      bench.work(stream, {&read}, {}, 0);
    }
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
    return bench.wrong();
  });
  CHECK(outcome == kRight);
}
#endif

TEST_CASE("program: no chunk is behind two pages' addresses, whatever comes and goes") {
  Bench bench({.seed = 4, .max_delay_us = 100});
  Network network(bench, 16, 2 * kGranule + 8192);
  for (int i = 0; i < 12; ++i) {
    network.forward(bench, kGranule / 2);
    const auto slots = static_cast<std::int64_t>(bench.program().pager().stats().slots);
    CHECK(bench.device().live().mappings <= 2 * slots);  // its own, and one page's
  }
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: the smallest blocks take a part of the budget, until they are freed") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    CAPTURE(static_cast<int>(evicted));
    Bench bench({.budget = 64 * kGranule, .streams = 2, .evicted = evicted, .max_delay_us = 20});
    const auto all_pass = [&bench] {
      std::vector<Tensor> large;
      for (unsigned i = 0; i < 100; ++i) {
        large.push_back(bench.make(kGranule, bench.stream(i), 100 + i));
      }
      // All but two pages can still be had at once.
      std::vector<const Tensor*> most;
      for (std::size_t i = 0; i < 62; ++i) most.push_back(&large[i]);
      bench.work(bench.stream(0), most, {}, 0);
      for (const Tensor& tensor : large) bench.drop(tensor);
    };
    for (int round = 0; round < 2; ++round) {
      std::vector<Tensor> small;  // of some ten pages
      for (unsigned i = 0; i < 640; ++i) {
        small.push_back(bench.make(1024, bench.stream(i / 100), i));
      }
      all_pass();
      for (const Tensor& tensor : small) bench.work(bench.stream(0), {&tensor}, {}, 0);
      for (const Tensor& tensor : small) bench.drop(tensor);
      PENSTOCK_REQUIRE_OK(bench.program().allocator().empty_cache());
    }
    all_pass();
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: a resize below what is pinned fails and changes nothing") {
  for (const Evicted evicted : {Evicted::kMapped, Evicted::kUnmapped, Evicted::kOnHost}) {
    CAPTURE(static_cast<int>(evicted));
    Bench bench({.evicted = evicted});
    Network network(bench, 16, 2 * kGranule + 8192);
    for (int i = 0; i < 14; ++i) network.forward(bench, kGranule / 2);
    std::vector<engine::Pin> pins;
    for (std::size_t i = 0; i < 4; ++i) {
      const Result<engine::Pin> pin = bench.program().pin(network.weights[i].address);
      PENSTOCK_REQUIRE_OK(pin.status());
      pins.push_back(pin.value());
    }
    const engine::PagerStats before = bench.program().pager().stats();
    CHECK(bench.program().pager().resize(9 * kGranule).code() == Code::kOutOfMemory);
    const engine::PagerStats after = bench.program().pager().stats();
    CHECK(after.slots == before.slots);
    CHECK(after.budget == before.budget);
    CHECK(after.counters.bytes_in == before.counters.bytes_in);
    for (const engine::Pin pin : pins) bench.program().unpin(pin);
    for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
    PENSTOCK_REQUIRE_OK(bench.program().pager().resize(9 * kGranule));
    for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
    CHECK(bench.program().pager().stats().device_bytes <= 9 * kGranule);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

}  // namespace
}  // namespace penstock::testing
