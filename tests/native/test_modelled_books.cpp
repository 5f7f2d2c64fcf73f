// SPDX-License-Identifier: Apache-2.0
// The books of the driver without memory: they keep every rule of the contract that needs no bytes,
// gives the same answers as the emulated GPU to any sequence of calls, and counts what they would
// cost.
#include <random>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "conformance_bench.hpp"
#include "driver/emulated/driver.hpp"
#include "lab/machines/modelled_driver.hpp"

namespace penstock::driver {
namespace {

constexpr Bytes kGranule = 64 * kKiB;

std::unique_ptr<ModelledDriver> opened(const ModelledDriverOptions& options) {
  auto driver = ModelledDriver::open(options);
  PENSTOCK_REQUIRE_OK(driver.status());
  return std::move(driver).value();
}

TEST_CASE("modelled driver: keeps the rules that need no bytes") {
  const std::vector<std::string> without_bytes = {
      "a driver says what it is",
      "ranges are aligned, apart and given back whole",
      "chunks take device memory and give it back",
      "a chunk beyond the device is out of memory, in numbers",
      "bad sizes and unknown chunks are refused",
      "map refuses what it cannot do and leaves nothing behind",
      "host chunks back a range like device chunks",
  };
  std::size_t kept = 0;
  for (const conformance::Rule& rule : conformance::rules()) {
    if (std::find(without_bytes.begin(), without_bytes.end(), rule.name) == without_bytes.end()) {
      continue;
    }
    ++kept;
    INFO(rule.name);
    auto driver = opened({.capacity = kGiB});
    rule.keep(*driver);
  }
  CHECK(kept == without_bytes.size());
}

// The same calls to both drivers; ranges and chunks are told apart by their index.
class Twins {
 public:
  Twins() : left_(opened({.capacity = 64 * kGranule, .granularity = kGranule})) {
    auto right = open_host_driver({.capacity = 64 * kGranule, .granularity = kGranule});
    PENSTOCK_REQUIRE_OK(right.status());
    right_ = std::move(right).value();
  }

  void step(std::mt19937& random) {
    const auto upto = [&](std::size_t n) { return random() % n; };
    switch (upto(6)) {
      case 0:
        reserve((1 + upto(6)) * kGranule);
        break;
      case 1:
        create((1 + upto(3)) * kGranule);
        break;
      case 2:
        if (!chunks_.empty()) release(upto(chunks_.size()));
        break;
      case 3:
        if (!ranges_.empty()) unreserve(upto(ranges_.size()), upto(8) == 0);
        break;
      case 4:
        if (!ranges_.empty() && !chunks_.empty()) {
          const std::size_t chunk = upto(chunks_.size());
          const Bytes size = upto(8) == 0 ? kGranule : chunks_[chunk].size;
          const std::size_t range = upto(ranges_.size());
          map(range, upto(ranges_[range].size / kGranule) * kGranule, size, chunk);
        }
        break;
      default:
        if (!ranges_.empty()) {
          edit(upto(ranges_.size()), upto(6) * kGranule, upto(5) * kGranule, upto(2) == 0);
        }
    }
    const LiveCounts a = left_->live();
    const LiveCounts b = right_->live();
    REQUIRE(a.ranges == b.ranges);
    REQUIRE(a.chunks == b.chunks);
    REQUIRE(a.mappings == b.mappings);
    REQUIRE(left_->memory_info().value().free == right_->memory_info().value().free);
  }

 private:
  struct Range {
    Addr left, right;
    Bytes size;
  };
  struct Piece {
    Chunk left, right;
    Bytes size;
  };

  static bool agree(const Status& a, const Status& b) {
    REQUIRE(a.code() == b.code());
    return a.ok();
  }
  void reserve(Bytes size) {
    auto a = left_->reserve(size);
    auto b = right_->reserve(size);
    if (agree(a.status(), b.status())) ranges_.push_back({a.value(), b.value(), size});
  }
  void create(Bytes size) {
    auto a = left_->create_chunk(size, Place::kDevice);
    auto b = right_->create_chunk(size, Place::kDevice);
    if (agree(a.status(), b.status())) chunks_.push_back({a.value(), b.value(), size});
  }
  void release(std::size_t i) {
    agree(left_->release_chunk(chunks_[i].left), right_->release_chunk(chunks_[i].right));
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void unreserve(std::size_t i, bool in_part) {
    const Range& range = ranges_[i];
    const Bytes size = in_part ? range.size + kGranule : range.size;
    if (agree(left_->unreserve(range.left, size), right_->unreserve(range.right, size))) {
      ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  void map(std::size_t i, Bytes offset, Bytes size, std::size_t chunk) {
    agree(left_->map(ranges_[i].left + offset, size, chunks_[chunk].left),
          right_->map(ranges_[i].right + offset, size, chunks_[chunk].right));
  }
  // Within the range alone: what lies beyond it differs between the two.
  void edit(std::size_t i, Bytes offset, Bytes size, bool unmap) {
    if (offset + size > ranges_[i].size) return;
    const Addr a = ranges_[i].left + offset;
    const Addr b = ranges_[i].right + offset;
    if (unmap) {
      agree(left_->unmap(a, size), right_->unmap(b, size));
    } else {
      agree(left_->set_access(a, size), right_->set_access(b, size));
    }
  }

  std::unique_ptr<ModelledDriver> left_;
  std::unique_ptr<HostDriver> right_;
  std::vector<Range> ranges_;
  std::vector<Piece> chunks_;
};

TEST_CASE("modelled driver: answers as the emulated GPU does") {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Twins twins;
    for (int i = 0; i < 400; ++i) twins.step(random);
  }
}

TEST_CASE("modelled driver: a chunk lives and counts until its last mapping goes") {
  auto driver = opened({.capacity = 3 * kGranule, .granularity = kGranule});
  const Addr range = driver->reserve(4 * kGranule).value();
  const Chunk chunk = driver->create_chunk(2 * kGranule, Place::kDevice).value();
  PENSTOCK_REQUIRE_OK(driver->map(range, 2 * kGranule, chunk));
  PENSTOCK_REQUIRE_OK(driver->map(range + 2 * kGranule, 2 * kGranule, chunk));
  PENSTOCK_REQUIRE_OK(driver->release_chunk(chunk));
  PENSTOCK_CHECK_CODE(driver->create_chunk(2 * kGranule, Place::kDevice).status(),
                      Code::kOutOfMemory);
  PENSTOCK_REQUIRE_OK(driver->unmap(range, 4 * kGranule));  // both at once
  CHECK(driver->used() == 0);
  PENSTOCK_CHECK_OK(driver->create_chunk(3 * kGranule, Place::kDevice).status());
  CHECK(driver->peak() == 3 * kGranule);
}

TEST_CASE("modelled driver: adds up what the calls would cost") {
  DriverCosts costs{.create_us = 1, .map_us = 10, .set_access_us = 100, .unmap_us = 1000};
  costs.release_us = 10000;
  auto driver = opened({.capacity = kGiB, .granularity = kGranule, .costs = costs});
  const Addr range = driver->reserve(3 * kGranule).value();
  for (Addr i = 0; i < 3; ++i) {
    const Chunk chunk = driver->create_chunk(kGranule, Place::kDevice).value();
    PENSTOCK_REQUIRE_OK(driver->map(range + i * kGranule, kGranule, chunk));
    if (i == 0) PENSTOCK_REQUIRE_OK(driver->release_chunk(chunk));
  }
  PENSTOCK_REQUIRE_OK(driver->set_access(range, 3 * kGranule));
  PENSTOCK_REQUIRE_OK(driver->unmap(range + kGranule, 2 * kGranule));
  CHECK(driver->modelled_us() == doctest::Approx(3 * 1 + 3 * 10 + 3 * 100 + 2 * 1000 + 10000));
  // What is refused costs nothing.
  PENSTOCK_CHECK_CODE(driver->set_access(range, 3 * kGranule), Code::kInvalidArgument);
  CHECK(driver->modelled_us() == doctest::Approx(12333));
  const DriverCalls calls = driver->calls();
  CHECK(calls.create == 3);
  CHECK(calls.map == 3);
  CHECK(calls.accessed == 3);
  CHECK(calls.unmapped == 2);
  CHECK(calls.release == 1);
}

TEST_CASE("modelled driver: addresses come back, and run out") {
  auto driver = opened({.capacity = kGiB, .granularity = 64 * kMiB});
  for (int i = 0; i < 70; ++i) {  // 280 TiB one after the other, of 128
    const auto range = driver->reserve(4 * kTiB);
    PENSTOCK_REQUIRE_OK(range.status());
    PENSTOCK_REQUIRE_OK(driver->unreserve(range.value(), 4 * kTiB));
  }
  PENSTOCK_CHECK_CODE(driver->reserve(Bytes{1} << 47).status(), Code::kOutOfMemory);
  PENSTOCK_CHECK_CODE(driver->reserve(Bytes{1} << 60).status(), Code::kInvalidArgument);
}

TEST_CASE(
    "modelled driver: what nobody works on is over at once, and managed memory is not there") {
  auto driver = opened({});
  const Stream stream = driver->create_stream().value();
  const Event event = driver->create_event(false).value();
  PENSTOCK_CHECK_OK(driver->record(event, stream));
  PENSTOCK_CHECK_OK(driver->query(event));
  PENSTOCK_CHECK_OK(driver->wait(stream, event));
  CHECK(driver->live().streams == 1);
  CHECK(driver->live().events == 1);
  PENSTOCK_CHECK_CODE(driver->share_with(1), Code::kUnsupported);
  PENSTOCK_CHECK_CODE(driver->managed_alloc(1).status(), Code::kUnsupported);
  PENSTOCK_CHECK_OK(driver->destroy_event(event));
  PENSTOCK_CHECK_OK(driver->destroy_stream(stream));
  CHECK(driver->live().streams == 0);
  PENSTOCK_CHECK_CODE(ModelledDriver::open({.granularity = 3000}).status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::driver
