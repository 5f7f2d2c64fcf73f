// SPDX-License-Identifier: Apache-2.0
// Conformance: which bytes copies and fills touch.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "conformance.hpp"
#include "conformance_bench.hpp"
#include "weights.hpp"

namespace penstock::driver::conformance {
namespace {

void odd_copies(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.backed({granule, 2 * granule, granule, granule});
  ByteVector expected(5 * granule, 0xA5);
  bench.write(address, expected);
  const std::vector<std::pair<Bytes, Bytes>> spans = {
      {0, 1},
      {granule - 1, 2},                // one byte on either side of a seam
      {granule - 3, 2 * granule + 7},  // a whole chunk and both its seams
      {3 * granule + 13, 1021},
      {granule / 2 + 1, 4 * granule},  // all of them
      {5 * granule - 1, 1},
  };
  std::uint64_t seed = 20;
  for (const auto& [offset, size] : spans) {
    const ByteVector bytes = pattern(size, seed++);
    bench.write(address + offset, bytes);
    std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
    CHECK(bench.read(address + offset, size) == bytes);
    CHECK(bench.read(address, expected.size()) == expected);
  }
}

void within_and_fill(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.backed({granule, granule, granule});
  ByteVector expected = pattern(3 * granule, 30);
  bench.write(address, expected);
  const auto at = [&](Bytes offset) {
    return expected.begin() + static_cast<std::ptrdiff_t>(offset);
  };

  const Bytes size = granule + 5;  // from inside one chunk over the seam into the next
  PENSTOCK_REQUIRE_OK(
      driver.copy_within(address + 2 * granule - 9, address + 3, size, kDefaultStream));
  const ByteVector moved(at(3), at(3 + size));
  std::copy(moved.begin(), moved.end(), at(2 * granule - 9));

  PENSTOCK_REQUIRE_OK(driver.fill(address + granule - 7, 0x3C, 15, kDefaultStream));
  std::fill_n(at(granule - 7), 15, std::uint8_t{0x3C});
  PENSTOCK_REQUIRE_OK(driver.fill(address + 1, 0, 1, kDefaultStream));
  *at(1) = 0;
  PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
  CHECK(bench.read(address, expected.size()) == expected);

  // End to end, where nothing overlaps, is allowed in both directions.
  PENSTOCK_REQUIRE_OK(driver.copy_within(address + 100, address, 100, kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver.copy_within(address + 300, address + 400, 100, kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
  std::copy(at(0), at(100), at(100));
  std::copy(at(400), at(500), at(300));
  CHECK(bench.read(address, expected.size()) == expected);
}

void overlapping_copies(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const ByteVector bytes = pattern(bench.granule, 31);
  bench.write(address, bytes);
  for (const auto& [to, from] : std::vector<std::pair<Bytes, Bytes>>{{0, 0}, {0, 99}, {99, 0}}) {
    PENSTOCK_CHECK_CODE(driver.copy_within(address + to, address + from, 100, kDefaultStream),
                        Code::kInvalidArgument);
  }
  PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
  CHECK(bench.read(address, bytes.size()) == bytes);
}

void empty_copies(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const ByteVector bytes = pattern(bench.granule, 32);
  bench.write(address, bytes);
  const Stream stream = bench.stream();
  PENSTOCK_CHECK_OK(driver.copy_in(address, nullptr, 0, stream));
  PENSTOCK_CHECK_OK(driver.copy_out(nullptr, address, 0, stream));
  PENSTOCK_CHECK_OK(driver.copy_within(address, address, 0, stream));
  PENSTOCK_CHECK_OK(driver.fill(address, 1, 0, stream));
  PENSTOCK_CHECK_OK(driver.synchronize(stream));
  CHECK(bench.read(address, bytes.size()) == bytes);
}

// Whether the copy was made shows in a place of the host's that was changed meanwhile.
void changed_copies(Driver& driver) {
  Bench bench(driver);
  const Bytes size = 4 * bench.granule;
  const Addr address = bench.backed({bench.granule, 3 * bench.granule});
  ByteVector expected = pattern(size, 40);
  bench.write(address, expected);
  std::uint8_t* host = bench.page_locked(size);
  std::fill_n(host, size, std::uint8_t{0});
  auto* print = reinterpret_cast<Fingerprint*>(bench.page_locked(sizeof(Fingerprint)));
  *print = {};
  const Stream stream = bench.stream();
  bool still = false;
  const auto leave = [&] {
    PENSTOCK_REQUIRE_OK(driver.copy_out_changed(host, address, size, print, still, stream));
    PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
    return std::equal(expected.begin(), expected.end(), host);
  };
  CHECK(leave());
  CHECK(leave());
  CHECK(print->changes == 0);
  // One bit anywhere; two words that change places; the same words elsewhere.
  std::uint32_t changes = 0;
  for (const Bytes at : {Bytes{0}, Bytes{15}, size / 2 + 3, size - 1}) {
    expected[at] ^= 0x10;
    PENSTOCK_REQUIRE_OK(driver.copy_in(address + at, &expected[at], 1, kDefaultStream));
    PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
    CHECK(leave());
    CHECK(print->changes == ++changes);
  }
  std::swap_ranges(expected.begin() + 160, expected.begin() + 176, expected.begin() + 3200);
  bench.write(address, expected);
  CHECK(leave());
  CHECK(print->changes == ++changes);
  std::rotate(expected.begin(), expected.begin() + 16, expected.end());
  bench.write(address, expected);
  CHECK(leave());
  CHECK(print->changes == ++changes);
  bench.write(address, ByteVector(size, 0));
  expected.assign(size, 0);
  CHECK(leave());
  CHECK(leave());
  CHECK(print->changes == ++changes);
  // A change is found and copied whole, and none is none, whatever was expected.
  std::uint32_t late = 0;
  for (const bool likely : {true, false, true, true}) {
    still = likely;
    for (int i = 0; i < 2; ++i) CHECK(leave());
    CHECK(print->changes == changes);
    host[5] ^= 1;  // what is still is not copied again
    CHECK(leave() == !still);
    expected = pattern(size, 50 + changes);
    bench.write(address, expected);
    late += still ? 1 : 0;
    CHECK(leave());
    CHECK(print->changes == ++changes);
    CHECK(print->late == late);
  }
  // One that has been used before serves another piece of memory, or the same at another place.
  print->valid = 0;
  std::fill_n(host, size, std::uint8_t{0});
  CHECK(leave());
  CHECK(print->changes == changes);
  CHECK(print->late == ++late);
  PENSTOCK_CHECK_CODE(driver.copy_out_changed(host, address, 24, print, still, stream),
                      Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.copy_out_changed(host, address, 32, nullptr, still, stream),
                      Code::kInvalidArgument);
}

// Encoded and decoded on the device: sizes that are a multiple of nothing, escapes of every kind,
// places of either width.
void encoded_pages(Driver& driver) {
  Bench bench(driver);
  const Bytes room = align_up(std::max<Bytes>(bench.granule, 320 * kKiB), bench.granule);
  const Addr address = bench.backed({room, room, room});
  const Addr staged = address + room;
  const Addr counts = staged + room;
  const Stream stream = bench.stream();
  auto* host = reinterpret_cast<std::byte*>(bench.page_locked(room));
  auto* coded = reinterpret_cast<std::byte*>(bench.page_locked(room));
  for (const Bytes size :
       {Bytes{2}, Bytes{30}, Bytes{32}, Bytes{34}, 2 * codec::kRun + 2, 2 * codec::kTile - 2,
        2 * codec::kTile, 2 * codec::kTile + 2, 9 * codec::kTile + 46, Bytes{128 * kKiB}}) {
    for (const Bytes noise : {Bytes{0}, size / 5, size}) {
      const std::span raw(host, size);
      testing::draw_weights(raw, static_cast<std::uint32_t>(size));
      const ByteVector random = pattern(size, size);
      for (Bytes i = 0; i < noise; ++i) raw[i] = static_cast<std::byte>(random[i]);
      PENSTOCK_REQUIRE_OK(driver.copy_in(address, host, size, stream));
      PENSTOCK_REQUIRE_OK(driver.fill(counts, 0, sizeof(codec::Counts), stream));
      PENSTOCK_REQUIRE_OK(driver.survey(counts, address, size, stream));
      codec::Counts found;
      PENSTOCK_REQUIRE_OK(driver.copy_out(coded, counts, sizeof(found), stream));
      PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
      std::memcpy(found.data(), coded, sizeof(found));
      CHECK(found == codec::counts_of(raw));
      const codec::Survey survey = codec::survey(size, found);
      const Bytes bytes = survey.shape.size();
      REQUIRE(bytes <= room);
      PENSTOCK_REQUIRE_OK(driver.fill(staged, 0xA5, room, stream));
      PENSTOCK_REQUIRE_OK(driver.encode(staged, address, survey, stream));
      PENSTOCK_REQUIRE_OK(driver.copy_out(coded, staged, room, stream));
      PENSTOCK_REQUIRE_OK(driver.fill(address, 0xA5, room, stream));
      PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
      const auto rest_is_as_it_was = [&](const std::byte* from, Bytes at) {
        return std::all_of(from + at, from + room,
                           [](std::byte byte) { return byte == std::byte{0xA5}; });
      };
      std::vector<std::byte> expected(bytes);
      codec::encode(survey, raw, expected);
      CHECK(std::memcmp(coded, expected.data(), bytes) == 0);
      CHECK(rest_is_as_it_was(coded, bytes));
      PENSTOCK_REQUIRE_OK(codec::seal({coded, bytes}, raw));
      PENSTOCK_REQUIRE_OK(driver.copy_in(staged, coded, bytes, stream));
      PENSTOCK_REQUIRE_OK(driver.decode(address, staged, survey.shape, stream));
      PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
      const ByteVector back = bench.read(address, room);
      CHECK(std::memcmp(back.data(), raw.data(), size) == 0);
      CHECK(rest_is_as_it_was(reinterpret_cast<const std::byte*>(back.data()), size));
    }
  }
  const codec::Survey survey{{64, 0}, {}};
  for (const Bytes apart : {Bytes{32}, 4 * kKiB + 8}) {
    for (const Status& status : {driver.decode(address, address + apart, survey.shape, stream),
                                 driver.encode(address, address + apart, survey, stream),
                                 driver.survey(address, address + apart, 64, stream)}) {
      PENSTOCK_CHECK_CODE(status, Code::kInvalidArgument);
    }
  }
  PENSTOCK_CHECK_CODE(driver.encode(address, staged, {}, stream), Code::kInvalidArgument);
}

}  // namespace

std::vector<Rule> rules_of_copies() {
  return {
      {"copies of odd sizes at odd offsets cross chunks", odd_copies},
      {"copy_within and fill touch exactly their bytes", within_and_fill},
      {"overlapping copies are refused", overlapping_copies},
      {"copies of nothing are allowed", empty_copies},
      {"what has not changed is not copied out again", changed_copies},
      {"what was encoded comes back on the device", encoded_pages},
  };
}

}  // namespace penstock::driver::conformance
