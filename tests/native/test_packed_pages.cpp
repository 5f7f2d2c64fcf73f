// SPDX-License-Identifier: Apache-2.0
// Ranges whose host memory is encoded: what kernels find, what is read and unpacked, what is
// refused, and that no failure of the driver leaves anything.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "conformance_bench.hpp"
#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "engine/paging/pager.hpp"
#include "weights.hpp"

namespace penstock::testing {
namespace {

using engine::Packing;
using engine::Pager;

constexpr Bytes kGranule = 16 * kKiB;
constexpr Bytes kUnaligned = 3 * kGranule + 4608;  // a block that ends within a page

struct Options {
  engine::Evicted evicted = engine::Evicted::kUnmapped;
  std::uint64_t seed = 1;
  std::uint32_t max_delay_us = 100;
  std::int64_t fail_at_call = 0;
  Bytes budget = 12 * kGranule;
};

// Six blocks in one range: weights that are encoded, one that may not be and one of noise.
struct Packed {
  explicit Packed(const Options& options) : with(options) {
    driver::HostDriverOptions machine{.capacity = 64 * kMiB, .granularity = kGranule};
    machine.seed = options.seed;
    machine.max_delay_us = options.max_delay_us;
    machine.fail_at_call = options.fail_at_call;
    device = std::move(driver::open_host_driver(machine)).value();
  }
  ~Packed() {
    if (stream != driver::Stream{}) {
      (void)device->synchronize(stream);
      pager.reset();
      (void)device->destroy_stream(stream);
    }
    pager.reset();
    const driver::LiveCounts live = device->live();
    CHECK(live.ranges + live.chunks + live.mappings + live.host_allocations + live.streams +
              live.events ==
          0);
  }

  Status open() {
    PENSTOCK_ASSIGN(stream, device->create_stream());
    PENSTOCK_ASSIGN(pager, Pager::create(*device, {.budget = with.budget,
                                                   .chunk_bytes = kGranule,
                                                   .look_ahead_bytes = 2 * kGranule,
                                                   .max_copy_bytes = 2 * kGranule,
                                                   .evicted = with.evicted}));
    PENSTOCK_ASSIGN(const std::int32_t index,
                    pager->create_range(kBlocks * kUnaligned, engine::RangeKind::kPaged));
    range = pager->range(index);
    content = drawn();
    std::copy(content.begin(), content.end(), range.host);
    for (Bytes i = 0; i < kBlocks; ++i) {
      blocks.push_back({range.address + i * kUnaligned, kUnaligned, i != kKept, nullptr});
    }
    PENSTOCK_TRY(pager->pack(blocks));
    for (const Packing& block : blocks) {
      PENSTOCK_ASSIGN(const engine::UseId use,
                      pager->define_use({{block.address, block.bytes, false}}));
      uses.push_back(use);
    }
    return {};
  }
  static const std::vector<std::byte>& drawn() {
    static const std::vector<std::byte> bytes = [] {
      std::vector<std::byte> made(kBlocks * kUnaligned);
      draw_weights(made, 5);
      std::mt19937 random(9);
      for (Bytes i = 0; i < kUnaligned; ++i) {
        made[kNoise * kUnaligned + i] = static_cast<std::byte>(random());
      }
      return made;
    }();
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> of(Bytes block) const {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(block * kUnaligned);
    return {begin, begin + kUnaligned};
  }
  Status sweep() {
    for (Bytes i = 0; i < kBlocks; ++i) {
      PENSTOCK_TRY(pager->begin(uses[i], stream));
      const Status launched = device->launch(stream, [this, i] {
        const auto* found = reinterpret_cast<const std::byte*>(blocks[i].address);
        wrong += std::memcmp(found, content.data() + i * kUnaligned, kUnaligned) != 0;
      });
      PENSTOCK_TRY(pager->end(uses[i], stream));
      PENSTOCK_TRY(launched);
    }
    return pager->iteration();
  }
  Status sweeps(int count) {
    for (int i = 0; i < count; ++i) PENSTOCK_TRY(sweep());
    return device->synchronize(stream);
  }

  static constexpr Bytes kBlocks = 6;
  static constexpr Bytes kKept = 2;
  static constexpr Bytes kNoise = 4;
  const Options with;
  std::unique_ptr<driver::HostDriver> device;
  std::unique_ptr<Pager> pager;
  driver::Stream stream{};
  engine::Range range;
  std::vector<std::byte> content;
  std::vector<Packing> blocks;
  std::vector<engine::UseId> uses;
  std::atomic<int> wrong{0};
};

TEST_CASE("packed pages: kernels find what was encoded, with delays in every stream") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Packed packed({.evicted = seed % 2 == 0 ? engine::Evicted::kMapped : engine::Evicted::kUnmapped,
                   .seed = seed,
                   .budget = (9 + 2 * seed) * kGranule});
    PENSTOCK_REQUIRE_OK(packed.open());
    PENSTOCK_REQUIRE_OK(packed.sweeps(5));
    CHECK(packed.wrong == 0);
    const engine::PagerStats stats = packed.pager->stats();
    CHECK(stats.encoded_bytes <= 4 * kUnaligned);  // a page's share of 4 KiB does not gain
    CHECK(stats.encoded_bytes > 4 * kUnaligned * 96 / 100);
    CHECK(stats.code_bytes < stats.encoded_bytes * 77 / 100);
    const Bytes as_it_is = Packed::kBlocks * kUnaligned - stats.encoded_bytes;
    CHECK(stats.host_bytes <= stats.code_bytes + as_it_is + 6 * 512 + 4096);
    CHECK(stats.peak_device_bytes <= packed.with.budget);
    CHECK(stats.counters.bytes_in > 0);
  }
}

TEST_CASE("packed pages: another range is packed while codes of the first are being decoded") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Packed packed({.evicted = engine::Evicted::kMapped, .seed = seed, .max_delay_us = 2000});
    PENSTOCK_REQUIRE_OK(packed.open());
    PENSTOCK_REQUIRE_OK(packed.sweep());
    const auto index = packed.pager->create_range(kUnaligned, engine::RangeKind::kPaged);
    PENSTOCK_REQUIRE_OK(index.status());
    const engine::Range other = packed.pager->range(index.value());
    std::memcpy(other.host, packed.content.data(), kUnaligned);
    std::vector<Packing> block{{other.address, kUnaligned, true, nullptr}};
    PENSTOCK_REQUIRE_OK(packed.pager->pack(block));
    CHECK(block[0].host == nullptr);
    PENSTOCK_REQUIRE_OK(packed.sweeps(2));
    CHECK(packed.wrong == 0);
    std::vector<std::byte> found(kUnaligned);
    PENSTOCK_REQUIRE_OK(packed.pager->read(other.address, kUnaligned, found.data()));
    CHECK(found == packed.of(0));
  }
}

TEST_CASE("packed pages: a block is read, and unpacked, also while others move") {
  Packed packed({});
  PENSTOCK_REQUIRE_OK(packed.open());
  for (Bytes i = 0; i < Packed::kBlocks; ++i) {
    CHECK((packed.blocks[i].host == nullptr) == (i != Packed::kKept && i != Packed::kNoise));
    std::vector<std::byte> found(kUnaligned);
    PENSTOCK_REQUIRE_OK(packed.sweep());
    PENSTOCK_REQUIRE_OK(packed.pager->read(packed.blocks[i].address, kUnaligned, found.data()));
    CHECK(found == packed.of(i));
    if (i % 2 == 0) continue;
    const auto host = packed.pager->unpack(packed.blocks[i].address, kUnaligned);
    PENSTOCK_REQUIRE_OK(host.status());
    CHECK(std::memcmp(host.value(), packed.of(i).data(), kUnaligned) == 0);
    CHECK(packed.pager->unpack(packed.blocks[i].address, kUnaligned).value() == host.value());
  }
  PENSTOCK_REQUIRE_OK(packed.sweeps(3));
  CHECK(packed.wrong == 0);
  const engine::PagerStats stats = packed.pager->stats();  // of one block
  CHECK(stats.encoded_bytes <= kUnaligned);
  CHECK(stats.encoded_bytes > kUnaligned * 9 / 10);
}

TEST_CASE("packed pages: what a use writes to an unpacked block is kept, beside encoded ones") {
  Packed packed({});
  PENSTOCK_REQUIRE_OK(packed.open());
  for (const Bytes i : {Bytes{1}, Packed::kKept}) {
    const Packing& block = packed.blocks[i];
    const auto host = packed.pager->unpack(block.address, kUnaligned);
    PENSTOCK_REQUIRE_OK(host.status());
    const auto use = packed.pager->define_use({{block.address, kUnaligned, true}});
    PENSTOCK_REQUIRE_OK(use.status());
    PENSTOCK_REQUIRE_OK(packed.pager->begin(use.value(), packed.stream));
    PENSTOCK_REQUIRE_OK(packed.device->launch(packed.stream, [&] {
      std::memset(reinterpret_cast<void*>(block.address), 7, kUnaligned);
    }));
    PENSTOCK_REQUIRE_OK(packed.pager->end(use.value(), packed.stream));
    PENSTOCK_REQUIRE_OK(packed.device->synchronize(packed.stream));
    std::memset(packed.content.data() + i * kUnaligned, 7, kUnaligned);
    PENSTOCK_REQUIRE_OK(packed.sweeps(3));
    PENSTOCK_REQUIRE_OK(packed.pager->flush(block.address, kUnaligned));
    CHECK(std::memcmp(host.value(), packed.of(i).data(), kUnaligned) == 0);
  }
  CHECK(packed.wrong == 0);
}

TEST_CASE("packed pages: damage on either side is found") {
  for (const auto evicted : {engine::Evicted::kUnmapped, engine::Evicted::kMapped}) {
    Packed packed({.evicted = evicted});
    PENSTOCK_REQUIRE_OK(packed.open());
    PENSTOCK_REQUIRE_OK(packed.sweeps(2));
    const auto found = packed.pager->verify();
    PENSTOCK_REQUIRE_OK(found.status());
    CHECK(found.value() == packed.pager->stats().encoded_bytes);
    std::byte* const code = packed.pager->range(0).host;  // the codes come first
    for (const Bytes at : {Bytes{0}, Bytes{100}, Bytes{3000}}) {
      code[at] ^= std::byte{1};
      CHECK(packed.pager->verify().status().code() == Code::kDriver);
      code[at] ^= std::byte{1};
    }
    PENSTOCK_REQUIRE_OK(packed.pager->verify().status());
    const engine::UseId use = packed.uses.front();
    PENSTOCK_REQUIRE_OK(packed.pager->begin(use, packed.stream));
    PENSTOCK_REQUIRE_OK(packed.device->launch(packed.stream, [&] {
      *reinterpret_cast<std::uint8_t*>(packed.blocks.front().address + 40) ^= 1;
    }));
    PENSTOCK_REQUIRE_OK(packed.device->synchronize(packed.stream));
    CHECK(packed.pager->verify().status().code() == Code::kDriver);
    PENSTOCK_REQUIRE_OK(packed.pager->end(use, packed.stream));  // which may let it leave
  }
}

TEST_CASE("packed pages: what makes no sense is refused, and changes nothing") {
  Packed packed({});
  PENSTOCK_REQUIRE_OK(packed.open());
  Pager& pager = *packed.pager;
  std::byte byte{};
  CHECK(pager.pack(packed.blocks).code() == Code::kInvalidArgument);  // again
  const Addr first = packed.blocks[0].address;
  CHECK(pager.read(first + 2, kUnaligned, &byte).code() == Code::kInvalidArgument);
  CHECK(pager.read(first, kUnaligned - 2, &byte).code() == Code::kInvalidArgument);
  CHECK(pager.unpack(first, 10).status().code() == Code::kInvalidArgument);
  CHECK(pager.unpack(Addr{16}, 16).status().code() == Code::kInvalidArgument);
  const auto index = pager.create_range(4 * kGranule, engine::RangeKind::kPaged);
  PENSTOCK_REQUIRE_OK(index.status());
  const Addr other = pager.range(index.value()).address;
  std::vector<Packing> twice{{other, 100, true, nullptr}, {other + 64, 100, true, nullptr}};
  CHECK(pager.pack(twice).code() == Code::kInvalidArgument);
  std::vector<Packing> outside{{other, 5 * kGranule, true, nullptr}};
  CHECK(pager.pack(outside).code() == Code::kInvalidArgument);
  PENSTOCK_REQUIRE_OK(packed.sweeps(2));
  CHECK(packed.wrong == 0);
}

TEST_CASE("packed pages: a budget that does not hold what codes land in is refused") {
  Packed packed({.budget = 4 * kGranule});
  CHECK(packed.open().code() == Code::kOutOfMemory);
}

TEST_CASE("packed pages: each driver call fails in turn, and nothing is left or other data found") {
  for (const auto evicted : {engine::Evicted::kUnmapped, engine::Evicted::kMapped}) {
    int failed = 0;
    std::int64_t last = 0;
    for (std::int64_t call = 1; last == 0; ++call) {
      CAPTURE(call);
      Packed packed({.evicted = evicted, .max_delay_us = 0, .fail_at_call = call});
      Status status = packed.open();
      if (status.ok()) status = packed.sweeps(1);
      if (status.ok()) status = packed.pager->verify().status();
      if (status.ok()) status = packed.pager->unpack(packed.blocks[1].address, kUnaligned).status();
      failed += !status.ok();
      if (!status.ok() && packed.uses.size() == Packed::kBlocks) {  // it goes on
        PENSTOCK_REQUIRE_OK(packed.sweeps(1));
        CHECK(packed.wrong == 0);
      }
      if (packed.device->calls() < call) last = call;
    }
    CHECK(last > 100);
    CHECK(failed > 20);
  }
}

}  // namespace
}  // namespace penstock::testing
