// SPDX-License-Identifier: Apache-2.0
// The code of bf16 values: every bit pattern comes back, and nothing that is damaged does.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "codec/bf16.hpp"
#include "codec/digest.hpp"
#include "doctest/doctest.h"
#include "weights.hpp"

namespace penstock::codec {
namespace {

using Memory = std::vector<std::byte>;

Memory of(const std::vector<std::uint16_t>& values) {
  Memory raw(2 * values.size());
  std::memcpy(raw.data(), values.data(), raw.size());
  return raw;
}

Survey survey_for(const Memory& raw) { return survey(raw.size(), counts_of(raw)); }

Memory encoded(const Memory& raw) {
  const Survey found = survey_for(raw);
  Memory code(found.shape.size(), std::byte{0xee});
  encode(found, raw, code);
  Memory back(raw.size());
  CHECK(!decode(code, back).ok());  // before it is sealed
  CHECK(seal(code, raw).ok());
  return code;
}

// The code's size.
Bytes check_comes_back(const Memory& raw) {
  const Memory code = encoded(raw);
  Memory back(raw.size(), std::byte{0x55});
  const Status status = decode(code, back);
  CHECK_MESSAGE(status.ok(), status.message());
  CHECK(back == raw);
  CHECK(verify(code, raw).ok());
  if (!back.empty()) {
    back[back.size() / 2] ^= std::byte{4};
    CHECK(verify(code, back).code() == Code::kInvalidArgument);
  }
  return code.size();
}

Memory gaussian(Bytes values, std::uint32_t seed = 1) {
  Memory raw(2 * values);
  testing::draw_weights(raw, seed);
  return raw;
}

void check_refused(const Memory& code, Bytes raw_bytes) {
  Memory back(raw_bytes);  // a write beyond it shows under the sanitizer
  const Status status = decode(code, back);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().starts_with("a compressed page is damaged: "));
}

TEST_CASE("codec: all 65,536 patterns, NaNs and denormals among them, in any order") {
  std::vector<std::uint16_t> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  check_comes_back(of(values));
  std::shuffle(values.begin(), values.end(), std::mt19937(7));
  check_comes_back(of(values));
  // Among weights, where nearly all of them are escapes.
  Memory raw = gaussian(300000);
  const Memory all = of(values);
  std::memcpy(raw.data() + 6000, all.data(), all.size());
  check_comes_back(raw);
}

TEST_CASE("codec: constants, zeros of both signs, and bytes at random") {
  for (const std::uint16_t value : {0x0000, 0x8000, 0x7fc1, 0xffff, 0x0001, 0x3c8f, 0xff80}) {
    check_comes_back(of(std::vector<std::uint16_t>(20000, value)));
  }
  std::mt19937 random(3);
  Memory raw(1 << 20);
  for (auto& byte : raw) byte = static_cast<std::byte>(random());
  CHECK(check_comes_back(raw) > raw.size());  // which is why such pieces stay raw
}

TEST_CASE("codec: weights take 11.3 bits of 16") {
  const Memory raw = gaussian(1 << 20);
  const Bytes size = check_comes_back(raw);
  CHECK(size > raw.size() * 112 / 160);
  CHECK(size < raw.size() * 114 / 160);
}

// As many values of each exponent.
Memory even(int exponents, Bytes values) {
  std::mt19937 random(5);
  std::vector<std::uint16_t> all(values);
  for (Bytes i = 0; i < values; ++i) {
    const auto exponent = static_cast<Bytes>(100) + i % static_cast<Bytes>(exponents);
    all[i] = static_cast<std::uint16_t>(exponent << 7 | (random() & 0x807f));
  }
  return of(all);
}

TEST_CASE("codec: places take as many bits as make the smaller code") {
  CHECK(survey_for(even(8, 1 << 16)).shape.width == 3);
  CHECK(survey_for(even(16, 1 << 16)).shape.width == 4);
  // One in 32 beyond the first eight costs 0.75 bits a value, one in 16 one and a half.
  CHECK(survey(2 << 16,
               [] {
                 Counts counts{};
                 for (int i = 0; i < 8; ++i) counts[120 + i] = (1 << 13) - (1 << 8);
                 counts[119] = 1 << 11;
                 return counts;
               }())
            .shape.width == 3);
  CHECK(survey(2 << 16,
               [] {
                 Counts counts{};
                 for (int i = 0; i < 8; ++i) counts[120 + i] = (1 << 13) - (1 << 9);
                 counts[119] = 1 << 12;
                 return counts;
               }())
            .shape.width == 4);
  for (const int exponents : {1, 7, 8, 9, 16, 17, 40}) check_comes_back(even(exponents, 50001));
}

TEST_CASE("codec: sizes that are a multiple of nothing, and none") {
  const Memory raw = gaussian(3 * kTile + 100);
  for (const Bytes values : {Bytes{0}, Bytes{1}, Bytes{2}, Bytes{15}, Bytes{16}, Bytes{17},
                             Bytes{63}, Bytes{65}, Bytes{127}, kRun - 1, kRun, kRun + 1, kTile - 1,
                             kTile, kTile + 1, 2 * kTile + 63, 3 * kTile + 99}) {
    CAPTURE(values);
    check_comes_back(Memory(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(2 * values)));
  }
}

TEST_CASE("codec: what is truncated, forged or damaged is refused") {
  Memory raw = gaussian(2 * kTile);
  for (Bytes i = 0; i < 5000; i += 7) raw[2 * i + 1] = static_cast<std::byte>(0x40 + i % 60);
  const Survey found = survey_for(raw);
  REQUIRE(found.shape.escapes > 500);
  const Memory code = encoded(raw);
  SUBCASE("at any length") {
    for (Bytes size = 0; size < code.size(); size += size < 80 ? 1 : 997) {
      check_refused(Memory(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(size)),
                    raw.size());
    }
  }
  SUBCASE("for memory of another size") {
    check_refused(code, raw.size() - 2);
    check_refused(code, raw.size() + 2);
    check_refused(code, raw.size() - 1);
  }
  const auto forged = [&](Bytes at, auto value) {
    Memory other = code;
    std::memcpy(other.data() + at, &value, sizeof(value));
    check_refused(other, raw.size());
  };
  SUBCASE("a header") {
    forged(offsetof(Header, magic), std::uint32_t{1});
    forged(offsetof(Header, version), std::uint32_t{1});
    for (const int width : {0, 2, 7 - static_cast<int>(found.shape.width), 5, 255}) {
      forged(offsetof(Header, width), static_cast<std::uint8_t>(width));
    }
    forged(offsetof(Header, digest), std::uint64_t{5});
    for (const std::uint64_t many :
         {std::uint64_t{0}, found.shape.escapes + 1, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      forged(offsetof(Header, escapes), many);
      forged(offsetof(Header, raw_bytes), many);
    }
    forged(offsetof(Header, exponents), std::uint8_t{0});
  }
  SUBCASE("escapes") {
    forged(found.shape.positions_at(), std::uint16_t{0xffff});
    forged(found.shape.positions_at(), static_cast<std::uint16_t>(kTile));
    forged(found.shape.starts_at(), std::uint32_t{0xffffffff});
    forged(found.shape.starts_at() + 4, std::uint32_t{0});
    forged(found.shape.starts_at() + 8, static_cast<std::uint32_t>(found.shape.escapes + 1));
  }
}

TEST_CASE("codec: a changed bit is never taken for the same memory, wherever it is") {
  Memory raw = gaussian(kTile + 77);
  raw[101] = std::byte{0x7f};
  const Memory code = encoded(raw);
  const Survey found = survey_for(raw);
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    Memory other = code;
    const Bytes at = random() % other.size();
    other[at] ^= static_cast<std::byte>(1U << random() % 8);
    Memory back(raw.size());
    // Padding and the header's spare bytes mean nothing.
    if (decode(other, back).ok()) CHECK(back == raw);
  }
  CHECK(found.shape.escapes > 0);
}

TEST_CASE("codec: digests tell places and lengths apart") {
  Memory raw(1000);
  const std::uint64_t zeros = digest(raw);
  CHECK(digest(std::span(raw).first(999)) != zeros);
  for (const Bytes at : {Bytes{0}, Bytes{8}, Bytes{31}, Bytes{500}, Bytes{999}}) {
    raw[at] = std::byte{1};
    CHECK(digest(raw) != zeros);
    const std::uint64_t here = digest(raw);
    raw[at] = std::byte{0};
    raw[at ^ 1] = std::byte{1};
    CHECK(digest(raw) != here);
    raw[at ^ 1] = std::byte{0};
  }
}

}  // namespace
}  // namespace penstock::codec
