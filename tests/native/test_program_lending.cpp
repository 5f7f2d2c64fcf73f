// SPDX-License-Identifier: Apache-2.0
// A program's budget while others use the device: given back when they need it, taken again when
// they have done with it, and no more than there is where they were quicker.
#include <vector>

#include "doctest/doctest.h"
#include "policy/residency/lending.hpp"
#include "program_bench.hpp"

namespace penstock::testing {
namespace {

constexpr Bytes kGranule = kProgramGranule;
constexpr Bytes kBudget = 20 * kGranule;

// Another user of the same device.
class Others {
 public:
  explicit Others(driver::Driver& device) : device_(device) {}
  ~Others() { leave(); }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  void take(Bytes bytes) {
    auto chunk = device_.create_chunk(bytes, driver::Place::kDevice);
    PENSTOCK_REQUIRE_OK(chunk.status());
    chunks_.push_back(chunk.value());
  }
  void take_all() { take(device_.memory_info().value().free); }
  void leave() {
    for (const driver::Chunk chunk : chunks_) PENSTOCK_REQUIRE_OK(device_.release_chunk(chunk));
    chunks_.clear();
  }

 private:
  driver::Driver& device_;
  std::vector<driver::Chunk> chunks_;
};

Bytes held(Bench& bench) { return bench.program().pager().stats().device_bytes; }

void work_for_long(Bench& bench, Tensor& tensor) {
  for (std::uint64_t i = 0; i <= policy::residency::kWorkBetweenLooks; ++i) {
    bench.work(bench.stream(0), {&tensor}, {}, 0);
  }
}

TEST_CASE("lending: more than there is cannot be given back") {
  Bench bench({.budget = kBudget});
  Network network(bench, 12, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  for (const Bytes bytes : {kBudget, Bytes{1} << 63, ~Bytes{0} - 511, ~Bytes{0}}) {
    CHECK(bench.program().give_back(bytes).code() == Code::kOutOfMemory);
    CHECK(bench.program().budget() == kBudget);
  }
  while (bench.program().give_back(1).ok()) CHECK(bench.program().budget() < kBudget);
  CHECK(bench.program().pager().stats().budget <= kBudget);
}

TEST_CASE("lending: a budget that was given back is the program's again when memory is free") {
  Bench bench({.budget = kBudget});
  Network network(bench, 12, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  Others others(bench.device());
  PENSTOCK_REQUIRE_OK(bench.program().give_back(6 * kGranule));
  others.take_all();
  CHECK(bench.program().budget() == kBudget - 6 * kGranule);
  work_for_long(bench, network.weights[0]);
  CHECK(bench.program().budget() == kBudget - 6 * kGranule);  // nothing is free
  CHECK(held(bench) <= kBudget - 6 * kGranule);
  others.leave();
  CHECK(bench.program().budget() == kBudget - 6 * kGranule);
  work_for_long(bench, network.weights[0]);
  CHECK(bench.program().budget() == kBudget);
  for (int i = 0; i < 2; ++i) network.forward(bench, kGranule / 2);
  CHECK(held(bench) == kBudget);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("lending: where nobody knows how much is needed, some is given at each call") {
  Bench bench({.budget = kBudget});
  Network network(bench, 12, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  Bytes before = held(bench);
  int times = 0;
  for (; bench.program().give_back(0).ok(); ++times) {
    CHECK(held(bench) < before);
    before = held(bench);
  }
  CHECK(times > 8);
  CHECK(bench.program().budget() >= kBudget / 8);
  network.forward(bench, kGranule / 2);  // which takes again what it cannot do without
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("lending: what is given back was held, not only allowed") {
  Bench bench({.budget = kBudget});
  Network network(bench, 3, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  REQUIRE(held(bench) < kBudget / 2);
  Others others(bench.device());
  others.take_all();
  PENSTOCK_REQUIRE_OK(bench.program().give_back(2 * kGranule));
  others.take(2 * kGranule);
  network.forward(bench, kGranule / 2);
  others.leave();
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("lending: what the last work touched can be given back once that is over") {
  Bench bench({.budget = kBudget});
  Network network(bench, 12, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  std::vector<const Tensor*> all;
  for (std::size_t i = 0; i < 9; ++i) all.push_back(&network.weights[i]);
  bench.work(bench.stream(0), all, {}, 0);
  PENSTOCK_REQUIRE_OK(bench.program().give_back(10 * kGranule));
  CHECK(held(bench) <= 10 * kGranule);
  bench.close();
  CHECK(bench.wrong() == 0);
}

TEST_CASE("lending: half of what is free is left to others") {
  CHECK(policy::residency::taken_again(8, 100, 2) == 8);
  CHECK(policy::residency::taken_again(8, 9, 2) == 4);
  CHECK(policy::residency::taken_again(8, 3, 2) == 0);
  CHECK(policy::residency::taken_again(0, 100, 2) == 0);
}

TEST_CASE("lending: where others took the memory that a budget counts on, what there is will do") {
  Bench bench({.budget = kBudget});
  Network network(bench, 12, 2 * kGranule);
  network.forward(bench, kGranule / 2);
  PENSTOCK_REQUIRE_OK(bench.program().give_back(6 * kGranule));
  work_for_long(bench, network.weights[0]);  // the budget is whole again, its chunks not made yet
  REQUIRE(bench.program().budget() == kBudget);
  REQUIRE(held(bench) < kBudget);
  Others others(bench.device());
  others.take_all();
  for (int i = 0; i < 3; ++i) network.forward(bench, kGranule / 2);
  CHECK(bench.program().budget() < kBudget);
  others.leave();
  work_for_long(bench, network.weights[0]);
  for (int i = 0; i < 2; ++i) network.forward(bench, kGranule / 2);
  CHECK(held(bench) == kBudget);
  bench.close();
  CHECK(bench.wrong() == 0);
}

}  // namespace
}  // namespace penstock::testing
