// SPDX-License-Identifier: Apache-2.0
// Programs whose work is announced: what follows is learned, and pages go and come by it.
#include <algorithm>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;

// Pages that come in a round of so many where there is room for 20, and 5 come ahead.  That many
// more than fit, and those 5, are away at any time, each for the round but for the 5 uses that it
// is ahead and the 6 that it lingers: 2 in its group and 4 until the next is to come.  On demand it
// is all.
constexpr Bytes most_of_round(Bytes pages) { return pages * (pages - 20 + 5) / (pages - 5 - 6); }

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
    PENSTOCK_REQUIRE_OK(bench.device().synchronize(stream));
  }

  void forget(Bench& bench) {
    for (Layer& layer : layers) {
      bench.drop(layer.keys);
      bench.drop(layer.values);
    }
  }

  std::uint64_t next = 1;
};

TEST_CASE("program: generation is foreseen, round after round") {
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
  CHECK(after.prefetched_pages - before.prefetched_pages > 44 * 32);
  CHECK(after.demanded_pages - before.demanded_pages <= 16);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a workspace that layers touch or not does not hide their order") {
  Bench bench({});
  Network network(bench, 20, 2 * kGranule + 8192);
  const Tensor workspace = bench.make(kGranule, bench.stream(0), 5);
  std::mt19937_64 random(1);
  const auto forward = [&] {
    for (const Tensor& weight : network.weights) {
      if (random() % 4 != 0) {
        bench.work(bench.stream(0), {&weight, &workspace}, {}, 0);
      } else {
        bench.work(bench.stream(0), {&weight}, {}, 0);
      }
      for (int i = 0; i < 6; ++i) bench.work(bench.stream(0), {}, {}, 0);
    }
  };
  for (int i = 0; i < 10; ++i) forward();
  const auto before = bench.program().pager().stats().counters;
  for (int i = 0; i < 6; ++i) forward();
  const auto after = bench.program().pager().stats().counters;
  CHECK(after.prefetched_pages - before.prefetched_pages > 6 * 20);
  CHECK(after.demanded_pages - before.demanded_pages <= 2);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: memory that is made anew is there when it is used, as gradients are") {
  Bench bench({});
  Network network(bench, 20, 2 * kGranule + 8192);
  const auto round = [&] {
    std::vector<Tensor> gradients;
    for (const Tensor& weight : network.weights) {
      gradients.push_back(bench.make(2 * kGranule, bench.stream(0), 3));
      bench.work(bench.stream(0), {&weight}, {&gradients.back()}, 4);
      for (int i = 0; i < 6; ++i) bench.work(bench.stream(0), {}, {}, 0);
    }
    for (Tensor& gradient : gradients) bench.drop(gradient);
  };
  for (int i = 0; i < 10; ++i) round();
  const auto before = bench.program().pager().stats().counters;
  for (int i = 0; i < 6; ++i) round();
  const auto after = bench.program().pager().stats().counters;
  const auto missed = (after.page_uses - before.page_uses) - (after.page_hits - before.page_hits);
  MESSAGE("missed " << missed << " of " << after.page_uses - before.page_uses);
  CHECK(missed <= 12);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a round that has other pieces of the same work is foreseen") {
  for (const bool usual : {false, true}) {
    CAPTURE(usual);
    Bench bench({});
    Network network(bench, 24, 2 * kGranule + 8192);
    const std::vector<Tensor>& weights = network.weights;
    // Of three layers the first two are one piece of work, or two.
    const auto round = [&](bool joined) {
      for (std::size_t i = 0; i < weights.size(); i += 3) {
        if (joined) {
          bench.work(bench.stream(0), {&weights[i], &weights[i + 1]}, {}, 0);
        } else {
          bench.work(bench.stream(0), {&weights[i]}, {}, 0);
          bench.work(bench.stream(0), {&weights[i + 1]}, {}, 0);
        }
        bench.work(bench.stream(0), {&weights[i + 2]}, {}, 0);
        for (int k = 0; k < 6; ++k) bench.work(bench.stream(0), {}, {}, 0);
      }
    };
    for (int i = 0; i < 10; ++i) round(usual);
    const auto before = bench.program().pager().stats().counters;
    for (const bool other : {true, false, true, false, false, true}) round(usual != other);
    const auto after = bench.program().pager().stats().counters;
    // Two layers touch six pages at once, and five come ahead.
    CHECK(after.demanded_pages - before.demanded_pages <= 2);
    CHECK(after.bytes_in - before.bytes_in <= 6 * most_of_round(51) * kGranule);
    bench.close();
    CHECK(bench.wrong() == 0);
  }
}

TEST_CASE("program: pages that come in side by side are one copy where they keep their addresses") {
  Bench bench({.evicted = Evicted::kMapped});
  Network network(bench, 20, 4 * kGranule);
  for (int i = 0; i < 12; ++i) network.forward(bench, kGranule / 2);
  const auto before = bench.program().pager().stats().counters;
  for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
  const auto after = bench.program().pager().stats().counters;
  const auto loads = after.prefetched_pages - before.prefetched_pages;
  CHECK(loads > 4 * 40);
  CHECK(2 * (after.copies - before.copies) <= loads);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: a phase that was known before is known again when it comes back") {
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
  phase(3, 8);  // a round is 40 pages
  CHECK(demanded() - before < learning / 2);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE(
    "program: a sweep beyond the budget is learned, and then moves little more than it must") {
  for (const Evicted evicted : {Evicted::kUnmapped, Evicted::kMapped}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(static_cast<int>(evicted));
      CAPTURE(seed);
      Bench bench({.evicted = evicted, .seed = seed, .max_delay_us = seed % 2 == 0 ? 200u : 0u});
      Network network(bench, 16, 2 * kGranule + 8192);
      for (int i = 0; i < 8; ++i) network.forward(bench, kGranule / 2);
      CHECK(bench.started() == 1);
      const engine::PagerStats before = bench.program().pager().stats();
      for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
      const engine::PagerStats after = bench.program().pager().stats();
      CHECK(after.counters.demanded_pages - before.counters.demanded_pages <= 2);
      CHECK(after.counters.bytes_in - before.counters.bytes_in <= 4 * most_of_round(34) * kGranule);
      CHECK(after.peak_device_bytes <= 20 * kGranule);
      // Weights are read, which nobody says; they are copied out once and no more.
      CHECK(after.counters.bytes_out <= 34 * kGranule);
      bench.close();
      CHECK(bench.wrong() == 0);
    }
  }
}

TEST_CASE("program: in texts of a prompt and many tokens pages come back to their places") {
  Bench bench({.evicted = Evicted::kMapped});
  Network network(bench, 23, 2 * kGranule + 8192);
  const std::vector<Tensor> all = network.weights;
  const auto text = [&] {
    std::reverse(network.weights.begin(), network.weights.begin() + 8);
    network.forward(bench, kGranule / 2);
    network.weights = all;
    for (int i = 0; i < 13; ++i) network.forward(bench, kGranule / 2);
  };
  const auto counters = [&] { return bench.program().pager().stats().counters; };
  for (int i = 0; i < 6; ++i) text();
  const auto before = counters();
  for (int i = 0; i < 3; ++i) text();
  const auto after = counters();
  const auto loads = [](const engine::Counters& at) {
    return at.prefetched_pages + at.demanded_pages;
  };
  CHECK(loads(after) - loads(before) > 3 * 17 * 20);
  CHECK(2 * (after.map_calls - before.map_calls) < loads(after) - loads(before));
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: gradients that are new in every step do not hide the order of the weights") {
  Bench bench({.budget = 48 * kGranule});
  Network network(bench, 20, 2 * kGranule + 8192);
  const auto step = [&] {
    network.forward(bench, kGranule / 2);
    std::vector<Tensor> gradients;
    for (auto weight = network.weights.rbegin(); weight != network.weights.rend(); ++weight) {
      gradients.push_back(bench.make(weight->bytes, bench.stream(0), 5));
      bench.work(bench.stream(0), {&*weight}, {&gradients.back()}, 6);
      for (int i = 0; i < 6; ++i) {
        bench.work(bench.stream(0), {&gradients.back()}, {&gradients.back()}, 7);
      }
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      Tensor& weight = network.weights[network.weights.size() - 1 - i];
      bench.work(bench.stream(0), {&weight, &gradients[i]}, {&weight}, 8);
    }
    for (const Tensor& gradient : gradients) bench.drop(gradient);
  };
  for (int i = 0; i < 12; ++i) step();
  const auto stats = [&] { return bench.program().pager().stats(); };
  const auto before = stats().counters;
  for (int i = 0; i < 4; ++i) step();
  const auto after = stats().counters;
  CHECK(after.prefetched_pages - before.prefetched_pages >
        after.demanded_pages - before.demanded_pages);
  bench.close();
  CHECK(bench.wrong() == 0);
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
  // Of the weights alone two pages more than there is room for come in a step, on demand all 34.
  CHECK(after.counters.prefetched_pages - before.counters.prefetched_pages > 8 * 2);
  CHECK(after.counters.bytes_in - before.counters.bytes_in <= 8 * 34 * kGranule / 2);
  CHECK(after.counters.demanded_pages - before.counters.demanded_pages <= 4);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: an order behind many uses that chance decided is learned") {
  constexpr std::size_t kRemembered = 1 << 16;  // uses
  Bench bench({.budget = 64 * kGranule});
  Network network(bench, 96, kGranule - 8192);
  std::mt19937_64 random(5);
  for (std::size_t i = 0; i < kRemembered / 3; ++i) {
    std::vector<engine::TouchedAddress> touched;
    for (int k = 0; k < 4; ++k) {
      const Tensor& weight = network.weights[random() % network.weights.size()];
      touched.push_back({weight.address, 8, false});
    }
    PENSTOCK_REQUIRE_OK(bench.program().announce(bench.stream(0), touched));
    bench.program().given(bench.stream(0));
  }
  const auto counters = [&] { return bench.program().pager().stats().counters; };
  const auto chance = counters();
  CHECK(chance.prefetched_pages < chance.demanded_pages / 20);
  for (int i = 0; i < 8; ++i) network.forward(bench, kGranule / 2);
  const auto before = counters();
  for (int i = 0; i < 4; ++i) network.forward(bench, kGranule / 2);
  const auto after = counters();
  CHECK(after.demanded_pages - before.demanded_pages <= 4);
  CHECK(after.bytes_in - before.bytes_in <= 4 * 60 * kGranule);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("program: another order of the same weights is learned in turn") {
  Bench bench({});
  Network network(bench, 16, 2 * kGranule + 8192);
  for (int i = 0; i < 8; ++i) network.forward(bench, kGranule / 2);
  std::reverse(network.weights.begin(), network.weights.end());
  for (int i = 0; i < 10; ++i) network.forward(bench, kGranule / 2);
  const engine::PagerStats before = bench.program().pager().stats();
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  const engine::PagerStats after = bench.program().pager().stats();
  CHECK(after.counters.demanded_pages - before.counters.demanded_pages <= 3);
  CHECK(after.counters.bytes_in - before.counters.bytes_in <= 3 * most_of_round(34) * kGranule);
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
