// SPDX-License-Identifier: Apache-2.0
// The hash table, against std::unordered_map.
#include <random>
#include <unordered_map>

#include "base/flat_map.hpp"
#include "doctest/doctest.h"

namespace penstock::testing {
namespace {

TEST_CASE("flat map: the same as std::unordered_map through many insertions and erasures") {
  std::mt19937_64 random(3);
  FlatMap<std::uint64_t> map;
  std::unordered_map<std::uint64_t, std::uint64_t> model;
  for (int step = 0; step < 60000; ++step) {
    const std::uint64_t key = random() % 700 * 512;  // few keys, so that runs of probes collide
    if (random() % 2 == 0) {
      if (model.emplace(key, step).second) map.insert(key, static_cast<std::uint64_t>(step));
    } else {
      CHECK(map.erase(key) == (model.erase(key) == 1));
    }
    const std::uint64_t* found = map.find(key);
    REQUIRE((found != nullptr) == model.contains(key));
    if (found != nullptr) REQUIRE(*found == model[key]);
  }
  CHECK(map.size() == model.size());
  std::size_t seen = 0;
  map.each([&](std::uint64_t key, std::uint64_t value) {
    ++seen;
    CHECK(model.at(key) == value);
  });
  CHECK(seen == model.size());
}

TEST_CASE("flat map: the key that marks empty entries is never there") {
  FlatMap<int> map;
  for (std::uint64_t key = 0; key < 10; ++key) map.insert(key * 512, static_cast<int>(key));
  CHECK(map.find(FlatMap<int>::kEmpty) == nullptr);
  CHECK_FALSE(map.erase(FlatMap<int>::kEmpty));
  CHECK(map.size() == 10);
}

}  // namespace
}  // namespace penstock::testing
