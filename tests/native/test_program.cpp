// SPDX-License-Identifier: Apache-2.0
// A program whose work is announced piece by piece, on the emulated GPU: every word that a kernel
// reads is checked, streams are delayed at random, and memory is a fraction of what lives.
#include <atomic>
#include <cstring>
#include <memory>
#include <random>

#include "doctest/doctest.h"
#include "driver/host_driver.hpp"
#include "engine/program.hpp"

namespace penstock::testing {
namespace {

#define REQUIRE_OK(expression)           \
  do {                                   \
    const Status status_ = (expression); \
    INFO(status_.message());             \
    REQUIRE(status_.ok());               \
  } while (false)

using engine::Evicted;

constexpr Bytes kGranule = 64 * kKiB;

struct Tensor {
  Addr address = 0;
  Bytes bytes = 0;
  driver::Stream stream{};
  std::uint64_t value = 0;  // that each of its words holds after the work given so far
};

struct BenchOptions {
  Bytes budget = 20 * kGranule;
  int streams = 1;
  engine::Evicted evicted = engine::Evicted::kProven;
  std::uint64_t seed = 0;
  std::uint32_t max_delay_us = 0;
  Bytes host_bytes = 0;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options) {
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = kGranule};
    host.seed = options.seed;
    host.max_delay_us = options.max_delay_us;
    device_ = std::move(driver::open_host_driver(host)).value();
    auto made = engine::Program::create(*device_, {.budget = options.budget,
                                                   .page_bytes = kGranule,
                                                   .host_bytes = options.host_bytes,
                                                   .evicted = options.evicted,
                                                   .start_paging = [this] { ++started_; },
                                                   .widened = {}});
    REQUIRE_OK(made.status());
    program_ = std::move(made).value();
    for (int i = 0; i < options.streams; ++i) {
      streams_.push_back(std::move(device_->create_stream()).value());
    }
  }
  ~Bench() { close(); }

  void close() {
    if (!device_) return;
    for (const driver::Stream stream : streams_) REQUIRE_OK(device_->synchronize(stream));
    program_.reset();
    for (const driver::Stream stream : streams_) REQUIRE_OK(device_->destroy_stream(stream));
    const driver::LiveCounts live = device_->live();
    CHECK(live.ranges == 0);
    CHECK(live.chunks == 0);
    CHECK(live.mappings == 0);
    CHECK(live.host_allocations == 0);
    CHECK(live.streams == 0);
    CHECK(live.events == 0);
    device_.reset();
  }

  driver::HostDriver& device() { return *device_; }
  engine::Program& program() { return *program_; }
  driver::Stream stream(std::size_t i) { return streams_[i % streams_.size()]; }
  [[nodiscard]] int started() const { return started_; }
  [[nodiscard]] std::int64_t wrong() const { return *wrong_; }

  Tensor make(Bytes bytes, driver::Stream stream, std::uint64_t value) {
    auto got = program_->allocator().allocate(bytes, stream);
    REQUIRE_OK(got.status());
    Tensor tensor{got.value(), bytes / 8 * 8, stream, value};
    work(stream, {}, {&tensor}, value);
    return tensor;
  }

  // A kernel that reads some tensors and fills others with `value`.
  void work(driver::Stream stream, const std::vector<const Tensor*>& reads,
            const std::vector<Tensor*>& writes, std::uint64_t value) {
    const bool announced = program_->pager().paging();
    if (announced) {
      std::vector<engine::TouchedAddress> touched;
      // Somewhere inside, as kernels' parameters may be.
      for (const Tensor* tensor : reads) touched.push_back({tensor->address + 4, 0, true});
      for (const Tensor* tensor : writes) touched.push_back({tensor->address, 0, true});
      touched.push_back({12345, 0, true});  // a number that is no address
      REQUIRE_OK(program_->announce(stream, touched));
    }
    std::vector<Tensor> in;
    std::vector<Tensor> out;
    for (const Tensor* tensor : reads) in.push_back(*tensor);
    for (Tensor* tensor : writes) {
      tensor->value = value;
      out.push_back(*tensor);
    }
    REQUIRE_OK(device_->launch(stream, [in, out, value, wrong = wrong_] {
      for (const Tensor& tensor : in) {
        const auto* words = reinterpret_cast<const std::uint64_t*>(tensor.address);
        for (Bytes i = 0; i < tensor.bytes / 8; ++i) {
          if (words[i] != tensor.value) ++*wrong;
        }
      }
      for (const Tensor& tensor : out) {
        auto* words = reinterpret_cast<std::uint64_t*>(tensor.address);
        for (Bytes i = 0; i < tensor.bytes / 8; ++i) words[i] = value;
      }
    }));
    if (announced) program_->given(stream);
  }

  void drop(const Tensor& tensor) { REQUIRE_OK(program_->allocator().free(tensor.address)); }

  // `after` on another stream than `before`.
  void order(driver::Stream before, driver::Stream after) {
    if (before == after) return;
    const driver::Event event = std::move(device_->create_event(false)).value();
    REQUIRE_OK(device_->record(event, before));
    REQUIRE_OK(device_->wait(after, event));
    REQUIRE_OK(device_->destroy_event(event));
  }

 private:
  std::unique_ptr<driver::HostDriver> device_;
  std::unique_ptr<engine::Program> program_;
  std::vector<driver::Stream> streams_;
  int started_ = 0;
  std::shared_ptr<std::atomic<std::int64_t>> wrong_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

// A network of layers whose weights stay and whose activations come and go.
struct Network {
  std::vector<Tensor> weights;

  Network(Bench& bench, int layers, Bytes bytes) {
    for (int i = 0; i < layers; ++i) {
      weights.push_back(bench.make(bytes, bench.stream(0), 1000 + static_cast<std::uint64_t>(i)));
    }
  }

  void forward(Bench& bench, Bytes activation) {
    Tensor hidden = bench.make(activation, bench.stream(0), 1);
    for (const Tensor& weight : weights) {
      Tensor next = bench.make(activation, bench.stream(0), 2);
      bench.work(bench.stream(0), {&hidden, &weight}, {&next}, 3);
      for (int i = 0; i < 6; ++i) bench.work(bench.stream(0), {&next}, {&next}, 4);
      bench.drop(hidden);
      hidden = next;
    }
    bench.drop(hidden);
  }
};

// A language model as it generates: weights of several sizes and small ones beside them, and a
// cache of keys and values a layer that is copied to a longer place for every token.
struct Generator {
  struct Layer {
    std::vector<Tensor> weights, small;
    Tensor keys, values;
  };
  Tensor table;
  std::vector<Layer> layers;

  Generator(Bench& bench, int count) {
    const auto make = [&](Bytes bytes) { return bench.make(bytes, bench.stream(0), ++next); };
    table = make(10 * kGranule);
    for (int i = 0; i < count; ++i) {
      Layer layer;
      for (const Bytes bytes : {60 * kKiB, 20 * kKiB, 80 * kKiB, 80 * kKiB}) {
        layer.small.push_back(make(64));
        layer.weights.push_back(make(bytes));
        layer.small.push_back(make(32));
      }
      layers.push_back(layer);
    }
  }

  // One pass that adds `tokens` to what the caches hold.
  void pass(Bench& bench, Bytes cached, Bytes tokens) {
    const driver::Stream stream = bench.stream(0);
    const auto temporary = [&](Bytes bytes) { return bench.make(bytes, stream, ++next); };
    const Bytes row = 16 * tokens;
    Tensor x = temporary(row);
    bench.work(stream, {&table}, {&x}, ++next);
    for (Layer& layer : layers) {
      for (std::size_t k = 0; k < layer.weights.size(); ++k) {
        Tensor y = temporary(row * (k == 2 ? 4 : 1));
        bench.work(stream, {&x, &layer.small[2 * k]}, {&y}, ++next);
        bench.work(stream, {&y, &layer.weights[k], &layer.small[2 * k + 1]}, {&y}, ++next);
        if (k == 0) {
          for (Tensor* cache : {&layer.keys, &layer.values}) {
            Tensor longer = temporary(16 * (cached + tokens));
            if (cached > 0) {
              bench.work(stream, {&y, cache}, {&longer}, ++next);
              bench.drop(*cache);
            } else {
              bench.work(stream, {&y}, {&longer}, ++next);
            }
            *cache = longer;
          }
          bench.work(stream, {&y, &layer.keys, &layer.values}, {&y}, ++next);
        }
        if (k == 2) {
          for (int i = 0; i < 7; ++i) {
            Tensor z = temporary(row * 4);
            bench.work(stream, {&y}, {&z}, ++next);
            bench.drop(y);
            y = z;
          }
        }
        bench.work(stream, {&y}, {&x}, ++next);
        bench.drop(y);
      }
    }
    Tensor logits = temporary(4096);
    bench.work(stream, {&x, &table}, {&logits}, ++next);
    bench.drop(logits);
    bench.drop(x);
    REQUIRE_OK(bench.device().synchronize(stream));
  }

  void forget(Bench& bench) {
    for (Layer& layer : layers) {
      bench.drop(layer.keys);
      bench.drop(layer.values);
    }
  }

  std::uint64_t next = 1;
};

TEST_CASE("program: generation is planned, round after round") {
  Bench bench({.budget = 110 * kGranule});
  Generator model(bench, 32);
  const auto counters = [&] { return bench.program().pager().stats().counters; };
  auto before = counters();
  for (int round = 0; round < 3; ++round) {
    for (int token = 0; token < 16; ++token) {
      model.pass(bench, token == 0 ? 0 : 128 + static_cast<Bytes>(token) - 1, token == 0 ? 128 : 1);
      if (round == 0 && token == 3) before = counters();
    }
    model.forget(bench);
  }
  const auto after = counters();
  CHECK(before.plans > 0);
  CHECK(after.mismatches - before.mismatches <= 8);
  CHECK(after.demanded_pages - before.demanded_pages <= 16);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a phase that was planned before is planned again when it comes back") {
  Bench bench({});
  Network network(bench, 20, 2 * kGranule + 8192);
  const std::vector<Tensor> all = network.weights;
  const auto phase = [&](int stride, int rounds) {
    network.weights.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      network.weights.push_back(all[i * static_cast<std::size_t>(stride) % all.size()]);
    }
    for (int i = 0; i < rounds; ++i) network.forward(bench, kGranule / 2);
  };
  const auto demanded = [&] { return bench.program().pager().stats().counters.demanded_pages; };
  phase(1, 8);
  auto before = demanded();
  phase(3, 8);
  const auto learning = demanded() - before;
  phase(1, 8);
  before = demanded();
  phase(3, 8);  // a round is 40 pages: learned anew it costs two rounds of them
  CHECK(demanded() - before < learning / 2);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: what fits is resident, and nothing is announced or moved") {
  Bench bench({.budget = 200 * kGranule});
  Network network(bench, 12, 3 * kGranule + 512);
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  CHECK(bench.started() == 0);
  CHECK(bench.program().pager().stats().counters.bytes_in == 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a sweep beyond the budget is learned, and then moves what the plan says") {
  for (const Evicted evicted : {Evicted::kProven, Evicted::kUnmapped, Evicted::kMapped}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(static_cast<int>(evicted));
      CAPTURE(seed);
      Bench bench({.evicted = evicted, .seed = seed, .max_delay_us = seed % 2 == 0 ? 200u : 0u});
      Network network(bench, 16, 2 * kGranule + 8192);
      for (int i = 0; i < 8; ++i) network.forward(bench, kGranule / 2);
      CHECK(bench.started() == 1);
      const engine::PagerStats before = bench.program().pager().stats();
      CHECK(before.counters.plans >= 1);
      CHECK(before.kept_pages > 0);
      for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
      const engine::PagerStats after = bench.program().pager().stats();
      CHECK(after.counters.mismatches == before.counters.mismatches);
      CHECK(after.counters.demanded_pages - before.counters.demanded_pages <= 2);
      CHECK(after.counters.bytes_in - before.counters.bytes_in <=
            4 * after.planned_bytes_in + 4 * kGranule);
      CHECK(after.peak_device_bytes <= 20 * kGranule);
      // Weights are read, which nobody says; they are copied out once and no more.
      CHECK(after.counters.bytes_out == before.counters.bytes_out);
      bench.close();
      CHECK(bench.wrong() == 0);
    }
  }
}

TEST_CASE(
    "program: evicted pages stay mapped once the program is known, until it does what is new") {
  for (const Evicted evicted : {Evicted::kProven, Evicted::kUnmapped}) {
    CAPTURE(static_cast<int>(evicted));
    Bench bench({.evicted = evicted});
    Network network(bench, 16, 2 * kGranule + 8192);
    const auto counters = [&] { return bench.program().pager().stats().counters; };
    const auto forward = [&] {
      network.forward(bench, kGranule / 2);
      // A page is unmapped when its last use is over, if it has not come back by then.
      REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
    };
    for (int i = 0; i < 14; ++i) forward();
    const auto known = counters();
    for (int i = 0; i < 4; ++i) forward();
    const auto later = counters();
    if (evicted == Evicted::kUnmapped) {
      CHECK(later.unmap_calls - known.unmap_calls >= 20);
      bench.close();
      continue;
    }
    CHECK(known.unmap_calls > 0);
    CHECK(later.unmap_calls == known.unmap_calls);
    CHECK(later.bytes_in > known.bytes_in);
    const auto slots = static_cast<std::int64_t>(bench.program().pager().stats().slots);
    CHECK(bench.device().live().mappings > slots);

    SUBCASE("a function that was not seen before") {
      REQUIRE_OK(bench.program().announce(bench.stream(0), {}, 17));
      bench.program().given(bench.stream(0));
      CHECK(bench.device().live().mappings <= slots);
    }
    SUBCASE("one that was") {
      REQUIRE_OK(bench.program().announce(bench.stream(0), {}, 17));
      bench.program().given(bench.stream(0));
      for (int i = 0; i < 8; ++i) forward();
      REQUIRE_OK(bench.program().announce(bench.stream(0), {}, 17));
      bench.program().given(bench.stream(0));
      CHECK(bench.device().live().mappings > slots);
    }
    SUBCASE("work that was not seen whole") {
      REQUIRE_OK(bench.program().announce(bench.stream(0), {}, 0, true));
      bench.program().given(bench.stream(0));
      CHECK(bench.device().live().mappings <= slots);
    }
    SUBCASE("another order") {
      std::reverse(network.weights.begin(), network.weights.end());
      forward();
      forward();
      CHECK(counters().unmap_calls > later.unmap_calls);
    }
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: no word is wrong in random work on several streams") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Bench bench({.streams = 3,
                 .evicted = static_cast<Evicted>(seed % 3),
                 .seed = seed,
                 .max_delay_us = 150});
    std::mt19937_64 random(seed);
    std::vector<Tensor> live;
    for (int i = 0; i < 900; ++i) {
      const driver::Stream stream = bench.stream(random() % 3);
      if (live.size() < 12 || (live.size() < 40 && random() % 3 == 0)) {
        live.push_back(bench.make(8 + random() % (3 * kGranule), stream, random()));
      } else if (random() % 3 == 0) {
        const std::size_t which = random() % live.size();
        bench.drop(live[which]);
        live[which] = live.back();
        live.pop_back();
      } else {
        Tensor& a = live[random() % live.size()];
        Tensor& b = live[random() % live.size()];
        // Work on a tensor stays in its own stream's order.
        bench.order(b.stream, a.stream);
        if (&a == &b) {
          bench.work(a.stream, {&a}, {&a}, random());
        } else {
          bench.work(a.stream, {&a, &b}, {&a}, random());
          bench.order(a.stream, b.stream);
        }
      }
      if (i % 200 == 199) REQUIRE_OK(bench.program().allocator().empty_cache());
    }
    CHECK(bench.started() == 1);
    CHECK(bench.program().pager().stats().peak_device_bytes <= 20 * kGranule);
    for (const Tensor& tensor : live) bench.work(tensor.stream, {&tensor}, {}, 0);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: caches that grow and move at every step do not hide the order of the weights") {
  Bench bench({.budget = 32 * kGranule});
  Network network(bench, 16, 2 * kGranule + 8192);
  std::vector<Tensor> caches;
  for (int i = 0; i < 16; ++i) caches.push_back(bench.make(2048, bench.stream(0), 7));
  engine::PagerStats before;
  for (int step = 0; step < 24; ++step) {
    if (step == 16) before = bench.program().pager().stats();
    for (std::size_t i = 0; i < network.weights.size(); ++i) {
      Tensor larger = bench.make(2048 + 512 * static_cast<Bytes>(step), bench.stream(0), 8);
      bench.work(bench.stream(0), {&caches[i]}, {&larger}, 9);
      bench.drop(caches[i]);
      caches[i] = larger;
      for (int k = 0; k < 10; ++k) bench.work(bench.stream(0), {&network.weights[i]}, {&larger}, 9);
      caches[i] = larger;
    }
  }
  const engine::PagerStats after = bench.program().pager().stats();
  CHECK(before.counters.plans > 0);
  CHECK(after.counters.mismatches - before.counters.mismatches <= 4);
  CHECK(after.counters.demanded_pages - before.counters.demanded_pages <= 40);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: another order of the same weights is learned in turn") {
  Bench bench({});
  Network network(bench, 16, 2 * kGranule + 8192);
  for (int i = 0; i < 8; ++i) network.forward(bench, kGranule / 2);
  const auto plans = bench.program().pager().stats().counters.plans;
  std::reverse(network.weights.begin(), network.weights.end());
  for (int i = 0; i < 10; ++i) network.forward(bench, kGranule / 2);
  const engine::PagerStats before = bench.program().pager().stats();
  CHECK(before.counters.plans > plans);
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  const engine::PagerStats after = bench.program().pager().stats();
  CHECK(after.counters.mismatches == before.counters.mismatches);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: what no budget can hold at once is out of memory, and the program goes on") {
  Bench bench({});
  Tensor small = bench.make(4 * kGranule, bench.stream(0), 5);
  auto large = bench.program().allocator().allocate(30 * kGranule, bench.stream(0));
  REQUIRE_OK(large.status());  // host memory holds it
  const engine::TouchedAddress touched{large.value(), 0, true};
  const Status status = bench.program().announce(bench.stream(0), std::span(&touched, 1));
  CHECK(status.code() == Code::kOutOfMemory);
  REQUIRE_OK(bench.program().allocator().free(large.value()));
  bench.work(bench.stream(0), {&small}, {&small}, 6);
  bench.work(bench.stream(0), {&small}, {}, 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: nothing leaves between a thread's announcement and its launch") {
  Bench bench({.streams = 2});
  Network network(bench, 12, 2 * kGranule + 8192);  // paging begins
  REQUIRE(bench.started() == 1);
  Tensor held = bench.make(3 * kGranule, bench.stream(1), 5);
  REQUIRE_OK(bench.device().synchronize(bench.stream(1)));
  // Another thread has announced, and is slow to launch; meanwhile all of memory is used up.
  const engine::TouchedAddress touched{held.address, 0, false};
  REQUIRE_OK(bench.program().announce(bench.stream(1), std::span(&touched, 1)));
  for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
  REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  auto wrong = std::make_shared<std::atomic<int>>(0);
  REQUIRE_OK(bench.device().launch(bench.stream(1), [held, wrong] {
    const auto* words = reinterpret_cast<const std::uint64_t*>(held.address);
    for (Bytes i = 0; i < held.bytes / 8; ++i) *wrong += words[i] == 5 ? 0 : 1;
  }));
  bench.program().given(bench.stream(1));
  REQUIRE_OK(bench.device().synchronize(bench.stream(1)));
  CHECK(*wrong == 0);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: any driver call may fail once; what was given stays right, nothing is left") {
  std::int64_t calls = 1;
  for (std::int64_t fail_at = 0; fail_at < calls; fail_at += fail_at < 60 ? 1 : 37) {
    CAPTURE(fail_at);
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = kGranule};
    host.fail_at_call = fail_at;
    auto device = std::move(driver::open_host_driver(host)).value();
    const Result<driver::Stream> stream = device->create_stream();
    if (!stream.ok()) continue;
    {
      auto made = engine::Program::create(
          *device,
          {.budget = 12 * kGranule, .page_bytes = kGranule, .start_paging = [] {}, .widened = {}});
      int failed = made.ok() ? 0 : 1;
      auto wrong = std::make_shared<std::atomic<std::int64_t>>(0);
      std::vector<Tensor> tensors;
      const auto work = [&](Tensor& tensor, bool fill) {
        engine::Program& program = *made.value();
        const engine::TouchedAddress touched{tensor.address, 0, true};
        if (!program.announce(stream.value(), std::span(&touched, 1)).ok()) {
          ++failed;  // and so the program does not launch
          return false;
        }
        const Status launched = device->launch(stream.value(), [tensor, fill, wrong] {
          auto* words = reinterpret_cast<std::uint64_t*>(tensor.address);
          for (Bytes i = 0; i < tensor.bytes / 8; ++i) {
            if (!fill && words[i] != tensor.value) ++*wrong;
            words[i] = tensor.value;
          }
        });
        program.given(stream.value());
        if (!launched.ok()) ++failed;
        return launched.ok();
      };
      for (int i = 0; made.ok() && i < 10; ++i) {
        const auto got = made.value()->allocator().allocate(2 * kGranule, stream.value());
        if (!got.ok()) ++failed;
        if (!got.ok()) continue;
        Tensor tensor{got.value(), 2 * kGranule, stream.value(), 100u + static_cast<unsigned>(i)};
        if (work(tensor, true)) tensors.push_back(tensor);
      }
      for (int round = 0; round < 6; ++round) {
        for (Tensor& tensor : tensors) work(tensor, false);
      }
      CHECK(failed <= 2);  // a failure may show in the call after it as well
      REQUIRE_OK(device->synchronize(stream.value()));
      CHECK(*wrong == 0);
      if (fail_at == 0) calls = device->calls();
    }
    REQUIRE_OK(device->destroy_stream(stream.value()));
    const driver::LiveCounts live = device->live();
    CHECK(live.chunks == 0);
    CHECK(live.mappings == 0);
    CHECK(live.ranges == 0);
    CHECK(live.host_allocations == 0);
    CHECK(live.events == 0);
    CHECK(live.streams == 0);
  }
  CHECK(calls > 200);
}

TEST_CASE("program: what a captured graph writes to stays, freed in its pool or not") {
  Bench bench({});
  Network network(bench, 12, 2 * kGranule + 8192);
  REQUIRE(bench.started() == 1);
  engine::Allocator& allocator = bench.program().allocator();
  const driver::Stream stream = bench.stream(0);
  REQUIRE_OK(allocator.begin_pool({7, 1}, [](driver::Stream) { return true; }));
  const auto temporary = allocator.allocate(2 * kGranule, stream);
  REQUIRE_OK(temporary.status());
  REQUIRE_OK(allocator.free(temporary.value()));
  REQUIRE_OK(allocator.end_pool({7, 1}));
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  // The replay, of which nothing is announced.
  REQUIRE_OK(bench.device().fill(temporary.value(), 9, 2 * kGranule, stream));
  for (int i = 0; i < 2; ++i) network.forward(bench, kGranule / 2);
  REQUIRE_OK(bench.device().synchronize(stream));
  REQUIRE_OK(allocator.release_pool({7, 1}));
  REQUIRE_OK(allocator.empty_cache());
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: pinned blocks stay where they are") {
  Bench bench({});
  Tensor pinned = bench.make(3 * kGranule, bench.stream(0), 77);
  Network network(bench, 12, 2 * kGranule + 8192);
  REQUIRE_OK(bench.program().pin(pinned.address + 100, 1));
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  // Work that nobody announced, as a replayed graph's is.
  auto wrong = std::make_shared<std::atomic<int>>(0);
  REQUIRE_OK(bench.device().launch(bench.stream(0), [pinned, wrong] {
    const auto* words = reinterpret_cast<const std::uint64_t*>(pinned.address);
    for (Bytes i = 0; i < pinned.bytes / 8; ++i) *wrong += words[i] == 77 ? 0 : 1;
  }));
  REQUIRE_OK(bench.device().synchronize(bench.stream(0)));
  CHECK(*wrong == 0);
  REQUIRE_OK(bench.program().pin(pinned.address, -1));
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
