// SPDX-License-Identifier: Apache-2.0
// How a managed set ends: destroyed at any point, or after any driver call has failed, it leaves
// nothing behind and says what was wrong.
#include "managed_bench.hpp"

namespace penstock::engine::managed_test {

namespace {

const std::vector<GroupSpec> kGroups(6, {4 * kGrain});

// A program in steps, stopped before step `stop`, in the middle of uses as it comes.
Status run(SetBench& bench, int stop) {
  int step = 0;
  for (int pass = 0; pass < 3; ++pass) {
    if (step++ == stop) return {};
    PENSTOCK_TRY(bench.set->iteration());
    for (GroupId id = 0; id < bench.count(); ++id) {
      if (step++ == stop) return {};
      PENSTOCK_TRY(bench.set->begin(id, bench.compute));
      const Status launched = bench.launch(id, bench.compute);
      if (step++ == stop) return launched;
      PENSTOCK_TRY(bench.set->end(id, bench.compute));
      PENSTOCK_TRY(launched);
    }
    if (pass == 1) PENSTOCK_TRY(bench.set->resize(10 * kGrain));
  }
  return {};
}

// All of a set's life; whatever failed first, with the findings of the kernels that ran.
Status life(HostDriver& host, Eviction eviction) {
  ManagedSetOptions chosen = options(13 * kGrain, 1);
  chosen.mover.eviction = eviction;
  chosen.mover.read_mostly = eviction == Eviction::kCollapse;
  chosen.profile_every = 1;
  PENSTOCK_ASSIGN(const Stream compute, host.create_stream());
  Status status;
  Findings findings;
  {
    auto made = ManagedSet::create(host, chosen, kGroups);
    status = made.status();
    for (int pass = 0; pass < 3 && status.ok(); ++pass) {
      status = made.value()->iteration();
      for (GroupId id = 0; id < static_cast<GroupId>(kGroups.size()) && status.ok(); ++id) {
        status = made.value()->begin(id, compute);
        if (!status.ok()) break;
        const Span span = made.value()->group(id).value();
        status = host.launch(compute, [&, span] {
          if (host.managed_resident(span.address, span.bytes) != span.bytes) ++findings.absent;
          if (host.managed_counters().resident > chosen.budget) ++findings.over_budget;
        });
        const Status ended = made.value()->end(id, compute);
        if (status.ok()) status = ended;
      }
      if (pass == 1 && status.ok()) status = made.value()->resize(10 * kGrain);
    }
  }
  (void)host.destroy_stream(compute);
  CHECK(findings.absent == 0);
  CHECK(findings.over_budget == 0);
  return status;
}

}  // namespace

TEST_CASE("managed set: destroyed at any point it leaves nothing behind") {
  for (int stop = 0; stop < 40; ++stop) {
    CAPTURE(stop);
    auto host = open({.seed = static_cast<std::uint64_t>(stop), .max_delay_us = 100});
    {
      ManagedSetOptions chosen = options(13 * kGrain, stop % 3);
      chosen.mover.streams = stop % 3;
      chosen.profile_every = 1;
      SetBench bench(*host, kGroups, chosen);
      PENSTOCK_CHECK_OK(run(bench, stop));
      bench.set.reset();
      CHECK(bench.findings.absent == 0);
      CHECK(bench.findings.wrong == 0);
    }
    CHECK(host->live() == driver::LiveCounts{});
    CHECK(host->managed_counters().resident == 0);
  }
}

TEST_CASE("managed set: whichever driver call fails, the error is clean and nothing is left") {
  for (const Eviction eviction : {Eviction::kCollapse, Eviction::kPrefetchToHost}) {
    auto whole = open();
    PENSTOCK_REQUIRE_OK(life(*whole, eviction));
    const std::int64_t calls = whole->calls();
    CHECK(calls > 60);
    int failed = 0;
    for (std::int64_t call = 1; call <= calls; ++call) {
      CAPTURE(call);
      auto host = open(
          {.seed = static_cast<std::uint64_t>(call), .max_delay_us = 20, .fail_at_call = call});
      const Status status = life(*host, eviction);
      if (!status.ok()) {
        ++failed;
        CHECK(status.message().find("injected failure") != std::string::npos);
      }
      CHECK(host->live() == driver::LiveCounts{});
      CHECK(host->managed_counters().resident == 0);
    }
    // Only what fails in the last jobs, which nobody waits for, goes unnoticed.
    CHECK(failed >= calls * 8 / 10);
  }
}

}  // namespace penstock::engine::managed_test
