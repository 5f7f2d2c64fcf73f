// SPDX-License-Identifier: Apache-2.0
// What the pager makes of measured times, and of room that changes from pass to pass: on a modelled
// machine, with the shapes of a Llama of 8 billion parameters.
#include <memory>
#include <vector>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "engine/paging/pager.hpp"
#include "lab/machines/modelled_driver.hpp"

namespace penstock::engine {
namespace {

constexpr Bytes kPage = 16 * kMiB;
constexpr double kLink = 55;
constexpr double kLaunchUs = 20;

struct Pass {
  double ms = 0;
  double bytes_in = 0;
};

class Llama {
 public:
  // The head is one operator, or so many.
  explicit Llama(Bytes room, double link = kLink, int heads = 1) {
    driver::ModelledDriverOptions machine;
    machine.link_gb_per_s = kLink;
    auto device = driver::ModelledDriver::open(machine);
    PENSTOCK_REQUIRE_OK(device.status());
    device_ = std::move(device).value();
    PagerOptions options;
    options.budget = room;
    options.chunk_bytes = kPage;
    options.look_ahead_bytes = 4 * kPage;
    options.max_copy_bytes = 4 * kPage;
    options.profile_every = 8;
    options.link_gb_per_s = link;
    auto pager = Pager::create(*device_, options);
    PENSTOCK_REQUIRE_OK(pager.status());
    pager_ = std::move(pager).value();
    const auto range = pager_->create_range(Bytes{15} * kGiB, RangeKind::kPaged);
    PENSTOCK_REQUIRE_OK(range.status());
    next_ = pager_->range(range.value()).address;
    for (int layer = 0; layer < 32; ++layer) {
      for (const Bytes mib : {32, 8, 8, 32, 112, 112, 112}) add(mib * kMiB);
    }
    for (int part = 0; part < heads; ++part) add(1002 * kMiB / heads);
    stream_ = device_->create_stream().value();
  }

  [[nodiscard]] double weights() const { return bytes_; }

  // One forward that takes so long where everything is resident.
  Pass pass(Bytes room, double compute_ms, std::uint64_t tokens) {
    const driver::Ns began = device_->now();
    const Bytes before = pager_->stats().counters.bytes_in;
    PENSTOCK_REQUIRE_OK(pager_->iteration(1, tokens));
    if (pager_->stats().budget != room) PENSTOCK_REQUIRE_OK(pager_->resize(room));
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      PENSTOCK_REQUIRE_OK(pager_->begin(uses_[i], stream_));
      const double share = static_cast<double>(sizes_[i]) / bytes_;
      device_->launch(stream_, static_cast<driver::Ns>(compute_ms * 1e6 * share));
      device_->advance(static_cast<driver::Ns>(kLaunchUs * 1e3));
      PENSTOCK_REQUIRE_OK(pager_->end(uses_[i], stream_));
    }
    device_->wait_until(device_->kernels_end());
    return {static_cast<double>(device_->now() - began) / 1e6,
            static_cast<double>(pager_->stats().counters.bytes_in - before)};
  }

 private:
  void add(Bytes bytes) {
    const auto use = pager_->define_use({{next_, bytes, false}});
    PENSTOCK_REQUIRE_OK(use.status());
    uses_.push_back(use.value());
    sizes_.push_back(bytes);
    next_ += bytes;
    bytes_ += static_cast<double>(bytes);
  }

  std::unique_ptr<driver::ModelledDriver> device_;
  std::unique_ptr<Pager> pager_;
  driver::Stream stream_{};
  Addr next_ = 0;
  std::vector<UseId> uses_;
  std::vector<Bytes> sizes_;
  double bytes_ = 0;
};

constexpr Bytes kSmallRoom = 300 * kPage;
constexpr Bytes kLargeRoom = 476 * kPage;

TEST_CASE("where compute sets the pace a plan looks further ahead once that is measured") {
  Llama model(kSmallRoom);
  Pass last;
  for (int i = 0; i < 6; ++i) last = model.pass(kSmallRoom, 250, 8192);
  CHECK(last.ms < 1.02 * 250);
  Llama unknown(kSmallRoom, 0);
  for (int i = 0; i < 6; ++i) last = unknown.pass(kSmallRoom, 250, 8192);
  CHECK(last.ms > 1.08 * 250);
}

TEST_CASE("where the link sets the pace it does not: that would cost bytes") {
  Llama model(kLargeRoom);
  Llama unknown(kLargeRoom, 0);
  Pass last;
  Pass wanted;
  for (int i = 0; i < 6; ++i) {
    last = model.pass(kLargeRoom, 33, 1024);
    wanted = unknown.pass(kLargeRoom, 33, 1024);
  }
  CHECK(last.bytes_in == wanted.bytes_in);
}

// The rest goes to pages in flight and to copies' own time.
TEST_CASE("where the link sets the pace a pass takes little more than what has to cross") {
  struct Case {
    Bytes room;
    double most;
  };
  for (const Case& within : {Case{260 * kPage, 1.06}, {480 * kPage, 1.06}, {736 * kPage, 1.12}}) {
    CAPTURE(within.room / kPage);
    Llama model(within.room);
    Pass last;
    for (int i = 0; i < 6; ++i) last = model.pass(within.room, 35, 1024);
    const double ideal_ms = (model.weights() - static_cast<double>(within.room)) / (kLink * 1e6);
    CHECK(last.ms > ideal_ms);
    CHECK(last.ms < within.most * ideal_ms);
  }
}

// While one operator of 1 GB runs, no more can come in than pages in flight have room for.
TEST_CASE("what a pass takes more is the head, where little has to cross") {
  const Bytes room = 736 * kPage;
  Pass last;
  Llama model(room, kLink, 8);
  for (int i = 0; i < 6; ++i) last = model.pass(room, 35, 1024);
  CHECK(last.ms < 1.055 * (model.weights() - static_cast<double>(room)) / (kLink * 1e6));
}

TEST_CASE("passes that need other room take turns: what the next plan keeps does not leave") {
  Llama model(kLargeRoom);
  for (int i = 0; i < 4; ++i) model.pass(kLargeRoom, 33, 1024);
  for (int i = 0; i < 4; ++i) model.pass(kSmallRoom, 250, 8192);
  Pass brief;
  Pass large;
  for (int i = 0; i < 3; ++i) {
    brief = model.pass(kLargeRoom, 33, 1024);
    large = model.pass(kSmallRoom, 250, 8192);
  }
  // Neither can find more than the smaller room holds when it begins.
  const double least = model.weights() - static_cast<double>(kSmallRoom);
  CHECK(brief.bytes_in < 1.06 * least);
  CHECK(large.bytes_in < 1.08 * least);
}

}  // namespace
}  // namespace penstock::engine
