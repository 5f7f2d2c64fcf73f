// SPDX-License-Identifier: Apache-2.0
#include "codec/bf16.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "codec/digest.hpp"

namespace penstock::codec {
namespace {

constexpr std::uint32_t kMagic = 0x36314650;  // "PF16"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint8_t kEscape = 0x10;  // of an exponent that has no place
constexpr Bytes kRun = 64;              // values that are searched for escapes together

using Values = std::array<std::uint16_t, kRun>;
using Places = std::array<std::uint8_t, 256>;

constexpr std::uint8_t exponent_of(std::uint16_t value) {
  return static_cast<std::uint8_t>(value >> 7);
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(T));
}

// Four counts, so that equal neighbours do not wait for each other's.
std::array<std::uint64_t, 256> histogram(std::span<const std::byte> raw) {
  std::array<std::array<std::uint32_t, 256>, 4> counts{};
  std::array<std::uint64_t, 256> sums{};
  const auto add_up = [&] {
    for (auto& some : counts) {
      for (std::size_t i = 0; i < 256; ++i) sums[i] += some[i];
      some.fill(0);
    }
  };
  constexpr Bytes kMost = 4 * kGiB;  // what 32 bits count
  Bytes at = 0;
  for (Bytes next = kMost; at + 8 <= raw.size(); at += 8) {
    if (at >= next) add_up(), next += kMost;
    const auto word = load<std::uint64_t>(raw.data() + at);
    for (std::size_t i = 0; i < 4; ++i) ++counts[i][word >> (16 * i + 7) & 0xff];
  }
  for (; at + 2 <= raw.size(); at += 2) {
    ++counts[0][exponent_of(load<std::uint16_t>(raw.data() + at))];
  }
  add_up();
  return sums;
}

// `count` values from there on; behind them whatever needs no escape.
void load_run(const std::byte* from, Bytes count, std::uint8_t exponent, Values& values) {
  if (count == kRun) {
    std::memcpy(values.data(), from, sizeof(values));
    return;
  }
  values.fill(static_cast<std::uint16_t>(exponent << 7));
  std::memcpy(values.data(), from, 2 * count);
}

// Exponents of weights are neighbours, as a rule: then arithmetic does, which takes all of a run's
// values at once where a table takes one after the other.
std::optional<std::uint8_t> lowest_of_neighbours(
    const std::array<std::uint8_t, kExponents>& exponents) {
  for (std::size_t i = 0; i < kExponents; ++i) {
    if (exponents[i] != exponents[0] + i) return std::nullopt;
  }
  return exponents[0];
}

// Whether one of the run is an escape.
template <class PlaceOf>
bool encode_run(const Values& values, const PlaceOf& place_of, std::byte* bytes,
                std::byte* indices) {
  std::array<std::uint8_t, kRun> places;
  for (Bytes i = 0; i < kRun; ++i) {
    bytes[i] = static_cast<std::byte>((values[i] >> 8 & 0x80) | (values[i] & 0x7f));
    places[i] = place_of(exponent_of(values[i]));
  }
  std::uint8_t seen = 0;
  for (const std::uint8_t place : places) seen = static_cast<std::uint8_t>(seen | place);
  std::array<std::uint16_t, kRun / 2> pairs;
  std::memcpy(pairs.data(), places.data(), kRun);
  for (Bytes i = 0; i < kRun / 2; ++i) {
    indices[i] = static_cast<std::byte>((pairs[i] & 0xf) | (pairs[i] >> 4 & 0xf0));
  }
  return (seen & kEscape) != 0;
}

template <class ExponentOf>
void decode_run(const std::byte* bytes, const std::byte* indices, const ExponentOf& exponent_of,
                std::byte* to) {
  std::array<std::uint16_t, kRun / 2> pairs;
  for (Bytes i = 0; i < kRun / 2; ++i) {
    const auto pair = std::to_integer<std::uint32_t>(indices[i]);
    pairs[i] = static_cast<std::uint16_t>((pair & 0xf) | (pair & 0xf0) << 4);
  }
  std::array<std::uint8_t, kRun> places;
  std::memcpy(places.data(), pairs.data(), kRun);
  Values values;
  for (Bytes i = 0; i < kRun; ++i) {
    const auto byte = std::to_integer<std::uint16_t>(bytes[i]);
    values[i] = static_cast<std::uint16_t>((byte & 0x80) << 8 | exponent_of(places[i]) << 7 |
                                           (byte & 0x7f));
  }
  std::memcpy(to, values.data(), sizeof(values));
}

Status wrong(const char* what) { return invalid("a compressed page is damaged: ", what); }

// A code whose header has been checked.
class Reader {
 public:
  // kInvalidArgument unless it is one of so many bytes, and all there.
  static Result<Reader> open(std::span<const std::byte> code, Bytes raw_bytes) {
    if (code.size() < sizeof(Header)) return wrong("it is truncated");
    Reader reader;
    reader.header_ = load<Header>(code.data());
    const Header& header = reader.header_;
    if (header.magic != kMagic || header.version != kVersion) {
      return wrong("its header is not ours");
    }
    if (header.raw_bytes != raw_bytes || raw_bytes % 2 != 0) return wrong("its size is another");
    reader.shape_ = {header.raw_bytes, header.escapes};
    const Shape& shape = reader.shape_;
    if (shape.escapes > shape.values()) return wrong("it has more escapes than values");
    if (code.size() < shape.size()) return wrong("it is truncated");
    reader.code_ = code.data();
    reader.lowest_ = lowest_of_neighbours(header.exponents);
    if (reader.start(0) != 0 || reader.start(shape.tiles()) != shape.escapes) {
      return wrong("not all of its escapes are used");
    }
    return reader;
  }

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::uint64_t digest() const { return header_.digest; }
  [[nodiscard]] Bytes values_in(Bytes tile) const {
    return std::min(kTile, shape_.values() - tile * kTile);
  }

  // Writes 2 * values_in(tile) bytes.
  Status decode(Bytes tile, std::byte* to) const {
    const Bytes count = values_in(tile);
    const std::byte* const bytes = code_ + Shape::bytes_at() + tile * kTile;
    const std::byte* const indices = code_ + shape_.indices_at() + tile * kTile / 2;
    Bytes at = 0;
    for (; at + kRun <= count; at += kRun) run(bytes + at, indices + at / 2, to + 2 * at);
    if (at < count) {
      std::array<std::byte, kRun> last{};
      std::array<std::byte, kRun / 2> of_last{};
      std::array<std::byte, 2 * kRun> values;
      std::memcpy(last.data(), bytes + at, count - at);
      std::memcpy(of_last.data(), indices + at / 2, divide_up(count - at, 2));
      run(last.data(), of_last.data(), values.data());
      std::memcpy(to + 2 * at, values.data(), 2 * (count - at));
    }
    return escape(tile, count, to);
  }

 private:
  [[nodiscard]] std::uint64_t start(Bytes tile) const {
    return load<std::uint32_t>(code_ + shape_.starts_at() + 4 * tile);
  }
  void run(const std::byte* bytes, const std::byte* indices, std::byte* to) const {
    if (lowest_) {
      decode_run(
          bytes, indices,
          [base = *lowest_](std::uint8_t place) {
            return static_cast<std::uint16_t>(base + place);
          },
          to);
    } else {
      decode_run(
          bytes, indices,
          [&](std::uint8_t place) { return std::uint16_t{header_.exponents[place]}; }, to);
    }
  }
  [[nodiscard]] Status escape(Bytes tile, Bytes count, std::byte* raw) const {
    const std::uint64_t end = start(tile + 1);
    if (start(tile) > end || end > shape_.escapes) return wrong("escapes out of order");
    for (std::uint64_t i = start(tile); i < end; ++i) {
      const auto escape = load<std::uint32_t>(code_ + shape_.escapes_at() + 4 * i);
      const Bytes place = escape & 0xffff;
      if (place >= count) return wrong("an escape lies outside its tile");
      std::byte* const to = raw + 2 * place;
      const auto value = load<std::uint16_t>(to);
      store(to, static_cast<std::uint16_t>((value & 0x807f) | (escape >> 16 & 0xff) << 7));
    }
    return {};
  }

  Header header_;
  Shape shape_;
  const std::byte* code_ = nullptr;
  std::optional<std::uint8_t> lowest_;
};

}  // namespace

Survey survey(std::span<const std::byte> raw) {
  const auto counts = histogram(raw);
  std::array<std::uint8_t, 256> order;
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::partial_sort(order.begin(), order.begin() + kExponents, order.end(),
                    [&](std::uint8_t a, std::uint8_t b) {
                      return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
                    });
  std::sort(order.begin(), order.begin() + kExponents);
  Survey found;
  found.shape = {raw.size(), raw.size() / 2};
  for (std::size_t i = 0; i < kExponents; ++i) {
    found.exponents[i] = order[i];
    found.shape.escapes -= counts[order[i]];
  }
  return found;
}

void encode(const Survey& survey, std::span<const std::byte> raw, std::span<std::byte> code) {
  const Shape& shape = survey.shape;
  std::memset(code.data(), 0, sizeof(Header));
  const Header header{kMagic,        kVersion,         raw.size(), digest(raw),
                      shape.escapes, survey.exponents, {}};
  store(code.data(), header);
  Places places;
  places.fill(kEscape);
  for (std::size_t i = 0; i < kExponents; ++i) {
    places[survey.exponents[i]] = static_cast<std::uint8_t>(i);
  }
  std::byte* const bytes_at = code.data() + Shape::bytes_at();
  std::byte* const indices_at = code.data() + shape.indices_at();
  std::byte* const starts_at = code.data() + shape.starts_at();
  std::byte* const escapes_at = code.data() + shape.escapes_at();
  // The ends of parts that are not full.
  std::memset(bytes_at + shape.values(), 0,
              shape.indices_at() - Shape::bytes_at() - shape.values());
  std::memset(starts_at - 16, 0, shape.values() == 0 ? 0 : 16);
  std::memset(escapes_at - 16, 0, 16);
  std::memset(escapes_at + 4 * shape.escapes, 0,
              shape.size() - shape.escapes_at() - 4 * shape.escapes);
  const auto lowest = lowest_of_neighbours(survey.exponents);
  std::uint32_t escapes = 0;
  Values values;
  std::array<std::byte, kRun> bytes;
  std::array<std::byte, kRun / 2> indices;
  for (Bytes first = 0; first < shape.values(); first += kRun) {
    if (first % kTile == 0) store(starts_at + 4 * (first / kTile), escapes);
    const Bytes count = std::min(kRun, shape.values() - first);
    load_run(raw.data() + 2 * first, count, survey.exponents[0], values);
    const auto near = [base = lowest.value_or(0)](std::uint8_t exponent) {
      return std::min(static_cast<std::uint8_t>(exponent - base), kEscape);
    };
    const auto any = [&](std::uint8_t exponent) { return places[exponent]; };
    const bool found = lowest ? encode_run(values, near, bytes.data(), indices.data())
                              : encode_run(values, any, bytes.data(), indices.data());
    std::memcpy(bytes_at + first, bytes.data(), count);
    std::memcpy(indices_at + first / 2, indices.data(), divide_up(count, 2));
    for (Bytes i = 0; found && i < count; ++i) {
      const std::uint8_t exponent = exponent_of(values[i]);
      if (places[exponent] != kEscape) continue;
      const auto place = static_cast<std::uint32_t>(first % kTile + i);
      store(escapes_at + 4 * std::uint64_t{escapes++}, place | std::uint32_t{exponent} << 16);
    }
  }
  store(starts_at + 4 * shape.tiles(), escapes);
}

Status decode(std::span<const std::byte> code, std::span<std::byte> raw) {
  PENSTOCK_ASSIGN(const Reader reader, Reader::open(code, raw.size()));
  for (Bytes tile = 0; tile < reader.shape().tiles(); ++tile) {
    PENSTOCK_TRY(reader.decode(tile, raw.data() + 2 * kTile * tile));
  }
  return digest(raw) == reader.digest() ? Status{} : wrong("its digest is another");
}

Status check(std::span<const std::byte> code, Bytes raw_bytes) {
  PENSTOCK_ASSIGN(const Reader reader, Reader::open(code, raw_bytes));
  static_assert(2 * kTile % Digest::kStride == 0);
  std::array<std::byte, 2 * kTile> values;
  Digest found(raw_bytes);
  for (Bytes tile = 0; tile < reader.shape().tiles(); ++tile) {
    PENSTOCK_TRY(reader.decode(tile, values.data()));
    found.add({values.data(), 2 * reader.values_in(tile)});
  }
  return found.value() == reader.digest() ? Status{} : wrong("its digest is another");
}

Status verify(std::span<const std::byte> code, std::span<const std::byte> raw) {
  PENSTOCK_ASSIGN(const Reader reader, Reader::open(code, raw.size()));
  std::array<std::byte, 2 * kTile> values;
  for (Bytes tile = 0; tile < reader.shape().tiles(); ++tile) {
    PENSTOCK_TRY(reader.decode(tile, values.data()));
    const Bytes bytes = 2 * reader.values_in(tile);
    if (std::memcmp(values.data(), raw.data() + 2 * kTile * tile, bytes) != 0) {
      return wrong("it stands for other bytes");
    }
  }
  return {};
}

}  // namespace penstock::codec
