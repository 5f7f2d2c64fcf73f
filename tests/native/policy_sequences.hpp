// SPDX-License-Identifier: Apache-2.0
// Sequences for the policy tests: the shapes of real models, and random ones from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy::testing {

using Random = std::mt19937;

// How many random cases to try: fewer where a sanitizer makes each ten to thirty times slower.
constexpr int cases(int wanted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return wanted / 8;
#else
  return wanted;
#endif
}

inline int pick(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint32_t>(high - low + 1));
}

// Steps of consecutive pages, each page used once an iteration; with `share`, the last page of a
// step is also the first of the next, as when a page straddles two parameters.
inline Sequence sweep(const std::vector<int>& sizes, Bytes page_bytes, bool share = false) {
  Sequence sequence;
  PageId next = 0;
  for (const int size : sizes) {
    Step step;
    if (share && next > 0) --next;
    for (int i = 0; i < size; ++i) step.pages.push_back(next++);
    sequence.steps.push_back(step);
  }
  sequence.page_bytes.assign(static_cast<std::size_t>(next), page_bytes);
  return sequence;
}

// What each step computes, of `ms` in all: in proportion to its pages.
inline std::vector<double> compute_times(const Sequence& sequence, double ms) {
  double pages = 0;
  for (const Step& step : sequence.steps) pages += static_cast<double>(step.pages.size());
  std::vector<double> times;
  for (const Step& step : sequence.steps) {
    times.push_back(pages > 0 ? ms * static_cast<double>(step.pages.size()) / pages : 0);
  }
  return times;
}

// A transformer of `layers` layers: an embedding, four products a layer, and the head.
inline std::vector<int> transformer_sizes(int layers, int ends, const std::vector<int>& layer) {
  std::vector<int> sizes{ends};
  for (int i = 0; i < layers; ++i) sizes.insert(sizes.end(), layer.begin(), layer.end());
  sizes.push_back(ends);
  return sizes;
}

// The shape of GPT-3 6.7B in fp16 in pages of 16 MiB: 130 steps.  26 ms of compute were measured.
inline Sequence gpt3_6b7(bool share = false) {
  const std::vector<int> layer =
      share ? std::vector<int>{7, 3, 9, 9} : std::vector<int>{6, 2, 8, 8};
  return sweep(transformer_sizes(32, 25, layer), 16 * kMiB, share);
}

// Any pages in any step.
inline Sequence random_sequence(Random& random, int pages, int steps, int largest) {
  Sequence sequence;
  for (int i = 0; i < pages; ++i) {
    sequence.page_bytes.push_back(random() % 4 == 0 ? static_cast<Bytes>(pick(random, 1, 100))
                                                    : 100);
  }
  std::vector<PageId> all(static_cast<std::size_t>(pages));
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < steps; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    const int size = pick(random, 0, std::min(largest, pages));
    sequence.steps.push_back({.pages = {all.begin(), all.begin() + size}});
  }
  return sequence;
}

// Sweeps with steps of all sizes, backwards as well, layers used several times, and ends that share
// their pages: one of several shapes that programs have.
inline Sequence structured_sequence(Random& random) {
  std::vector<int> sizes(static_cast<std::size_t>(pick(random, 1, 20)));
  for (int& size : sizes) size = pick(random, 1, 6);
  Sequence sequence = sweep(sizes, 100, random() % 2 == 0);
  const std::vector<Step> forward = sequence.steps;
  switch (random() % 5) {
    case 0:  // there and back, as in training
      sequence.steps.insert(sequence.steps.end(), forward.rbegin(), forward.rend());
      break;
    case 1:  // the same layers again
      for (int again = pick(random, 1, 3); again > 0; --again) {
        sequence.steps.insert(sequence.steps.end(), forward.begin(), forward.end());
      }
      break;
    case 2:  // a tied embedding
      sequence.steps.push_back(forward.front());
      break;
    case 3: {  // every step repeated before the next
      sequence.steps.clear();
      const int times = pick(random, 2, 3);
      for (const Step& step : forward) {
        for (int i = 0; i < times; ++i) sequence.steps.push_back(step);
      }
      break;
    }
    default:
      break;
  }
  return sequence;
}

inline Sequence any_sequence(Random& random) {
  if (random() % 2 == 0) return structured_sequence(random);
  const int pages = pick(random, 1, 24);
  return random_sequence(random, pages, pick(random, 1, 24), pick(random, 1, 6));
}

}  // namespace penstock::policy::testing
