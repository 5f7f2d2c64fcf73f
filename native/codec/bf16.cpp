// SPDX-License-Identifier: Apache-2.0
#include "codec/bf16.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "codec/digest.hpp"

namespace penstock::codec {
namespace {

constexpr std::uint32_t kMagic = 0x36314650;  // "PF16"
constexpr std::uint32_t kVersion = 2;
constexpr std::uint8_t kEscape = 0x10;  // of an exponent that has no place
constexpr Bytes kGroup = kRun / 4;  // values whose bits lie beside each other, four groups a run

using Values = std::array<std::uint16_t, kRun>;
using Run = std::array<std::uint8_t, kRun>;
using Places = Run;
using Table = std::array<std::uint8_t, 256>;

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
std::optional<std::uint8_t> lowest_of_neighbours(std::span<const std::uint8_t> exponents) {
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    if (exponents[i] != exponents[0] + i) return std::nullopt;
  }
  return exponents[0];
}

// Eight bytes at a time: a bit that is shifted stays in its byte.
using Word = std::uint64_t;
using Fours = std::array<Word, kGroup / 8>;  // bytes of four bits each
constexpr Word in_each_byte(Word bits) { return 0x0101010101010101 * bits; }

// Two in a byte.
void halve(const Fours& fours, std::byte* to) {
  std::array<std::uint16_t, kGroup / 2> words;
  std::memcpy(words.data(), fours.data(), kGroup);
  for (Bytes i = 0; i < kGroup / 2; ++i) {
    to[i] = static_cast<std::byte>((words[i] & 0xf) | (words[i] >> 4 & 0xf0));
  }
}

Fours doubled(const std::byte* from) {
  std::array<std::uint16_t, kGroup / 2> words;
  for (Bytes i = 0; i < kGroup / 2; ++i) {
    const auto two = std::to_integer<std::uint32_t>(from[i]);
    words[i] = static_cast<std::uint16_t>((two & 0xf) | (two & 0xf0) << 4);
  }
  Fours fours;
  std::memcpy(fours.data(), words.data(), kGroup);
  return fours;
}

// Where a run's parts lie in a code.
template <class Byte>
struct RunParts {
  Byte* bytes;
  Byte* pairs;
  std::array<Byte*, 2> planes;  // the second where places have four bits
};

void store_places(const Places& places, std::uint32_t width, const RunParts<std::byte>& to) {
  std::array<Fours, 4> groups;
  std::memcpy(groups.data(), places.data(), kRun);
  Fours fours;
  for (Bytes half = 0; half < 2; ++half) {
    const Fours& even = groups[2 * half];
    const Fours& odd = groups[2 * half + 1];
    for (Bytes i = 0; i < fours.size(); ++i) {
      fours[i] = (even[i] & in_each_byte(3)) | (odd[i] & in_each_byte(3)) << 2;
    }
    halve(fours, to.pairs + half * kGroup / 2);
  }
  for (std::uint32_t bit = 2; bit < width; ++bit) {
    const auto of = [&](const Fours& group, Bytes i) { return group[i] >> bit & in_each_byte(1); };
    for (Bytes i = 0; i < fours.size(); ++i) {
      fours[i] =
          of(groups[0], i) | of(groups[1], i) << 1 | of(groups[2], i) << 2 | of(groups[3], i) << 3;
    }
    halve(fours, to.planes[bit - 2]);
  }
}

void load_places(const RunParts<const std::byte>& from, std::uint32_t width, Places& places) {
  std::array<Fours, 4> groups;
  for (Bytes half = 0; half < 2; ++half) {
    const Fours fours = doubled(from.pairs + half * kGroup / 2);
    for (Bytes i = 0; i < fours.size(); ++i) {
      groups[2 * half][i] = fours[i] & in_each_byte(3);
      groups[2 * half + 1][i] = fours[i] >> 2 & in_each_byte(3);
    }
  }
  for (std::uint32_t bit = 2; bit < width; ++bit) {
    const Fours fours = doubled(from.planes[bit - 2]);
    for (Bytes i = 0; i < fours.size(); ++i) {
      for (Bytes group = 0; group < 4; ++group) {
        groups[group][i] |= (fours[i] >> group & in_each_byte(1)) << bit;
      }
    }
  }
  std::memcpy(places.data(), groups.data(), kRun);
}

template <class PlaceOf>
void split(const Values& values, const PlaceOf& place_of, Run& bytes, Places& places) {
  for (Bytes i = 0; i < kRun; ++i) {
    bytes[i] = static_cast<std::uint8_t>((values[i] >> 8 & 0x80) | (values[i] & 0x7f));
  }
  for (Bytes i = 0; i < kRun; ++i) places[i] = place_of(exponent_of(values[i]));
}

template <class ExponentOf>
void join(const std::byte* bytes, const Places& places, const ExponentOf& exponent_of,
          Values& values) {
  for (Bytes i = 0; i < kRun; ++i) {
    const auto byte = std::to_integer<std::uint16_t>(bytes[i]);
    values[i] = static_cast<std::uint16_t>((byte & 0x80) << 8 | exponent_of(places[i]) << 7 |
                                           (byte & 0x7f));
  }
}

Status wrong(const char* what) { return invalid("a compressed page is damaged: ", what); }

template <class Byte>
RunParts<Byte> parts(Byte* code, const Shape& shape, Bytes first) {
  const Bytes run = first / kRun;
  Byte* const plane = code + shape.planes_at() + kRun / 8 * run;
  return {code + Shape::bytes_at() + first,
          code + shape.pairs_at() + kRun / 4 * run,
          {plane, plane + kRun / 8 * shape.runs()}};
}

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
    if (header.width != 3 && header.width != 4) return wrong("its places have another width");
    reader.shape_ = {header.raw_bytes, header.escapes, header.width};
    const Shape& shape = reader.shape_;
    if (shape.escapes > shape.values()) return wrong("it has more escapes than values");
    if (code.size() < shape.size()) return wrong("it is truncated");
    reader.code_ = code.data();
    reader.lowest_ = lowest_of_neighbours(std::span(header.exponents).first(1U << shape.width));
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
    std::array<std::byte, kRun> last{};
    Places places;
    Values values;
    for (Bytes at = 0; at < count; at += kRun) {
      const Bytes here = std::min(kRun, count - at);
      auto run = parts(code_, shape_, tile * kTile + at);
      if (here < kRun) {
        std::memcpy(last.data(), run.bytes, here);
        run.bytes = last.data();
      }
      load_places(run, shape_.width, places);
      if (lowest_) {
        const auto near = [base = *lowest_](std::uint8_t place) {
          return static_cast<std::uint16_t>(base + place);
        };
        join(run.bytes, places, near, values);
      } else {
        const auto any = [&](std::uint8_t place) {
          return std::uint16_t{header_.exponents[place]};
        };
        join(run.bytes, places, any, values);
      }
      std::memcpy(to + 2 * at, values.data(), 2 * here);
    }
    return escape(tile, count, to);
  }

 private:
  [[nodiscard]] std::uint64_t start(Bytes tile) const {
    return load<std::uint32_t>(code_ + shape_.starts_at() + 4 * tile);
  }
  [[nodiscard]] Status escape(Bytes tile, Bytes count, std::byte* raw) const {
    const std::uint64_t end = start(tile + 1);
    if (start(tile) > end || end > shape_.escapes) return wrong("escapes out of order");
    for (std::uint64_t i = start(tile); i < end; ++i) {
      const Bytes position = load<std::uint16_t>(code_ + shape_.positions_at() + 2 * i);
      if (position >= count) return wrong("an escape lies outside its tile");
      const auto other = std::to_integer<std::uint16_t>(code_[shape_.others_at() + i]);
      std::byte* const to = raw + 2 * position;
      store(to, static_cast<std::uint16_t>((load<std::uint16_t>(to) & 0x807f) | other << 7));
    }
    return {};
  }

  Header header_;
  Shape shape_;
  const std::byte* code_ = nullptr;
  std::optional<std::uint8_t> lowest_;
};

// Whether it decodes to that, tile by tile; adds up the digest on the way.
Status compare(std::span<const std::byte> code, std::span<const std::byte> raw, Digest* digest) {
  PENSTOCK_ASSIGN(const Reader reader, Reader::open(code, raw.size()));
  std::array<std::byte, 2 * kTile> values;
  for (Bytes tile = 0; tile < reader.shape().tiles(); ++tile) {
    PENSTOCK_TRY(reader.decode(tile, values.data()));
    const auto here = raw.subspan(2 * kTile * tile, 2 * reader.values_in(tile));
    if (std::memcmp(values.data(), here.data(), here.size()) != 0) {
      return wrong("it stands for other bytes");
    }
    if (digest != nullptr) digest->add(here);
  }
  return {};
}

}  // namespace

Header Survey::header() const {
  Header header{kMagic, kVersion, shape.raw_bytes, 0, shape.escapes, exponents};
  header.width = static_cast<std::uint8_t>(shape.width);
  return header;
}

// Four counts, so that equal neighbours do not wait for each other's.
Counts counts_of(std::span<const std::byte> raw) {
  std::array<Counts, 4> counts{};
  Bytes at = 0;
  for (; at + 8 <= raw.size(); at += 8) {
    const auto word = load<std::uint64_t>(raw.data() + at);
    for (std::size_t i = 0; i < 4; ++i) ++counts[i][word >> (16 * i + 7) & 0xff];
  }
  for (; at + 2 <= raw.size(); at += 2) {
    ++counts[0][exponent_of(load<std::uint16_t>(raw.data() + at))];
  }
  Counts sums{};
  for (const Counts& some : counts) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += some[i];
  }
  return sums;
}

Survey survey(Bytes raw_bytes, const Counts& counts, std::uint32_t only) {
  std::array<std::uint8_t, 256> order;
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::partial_sort(order.begin(), order.begin() + kExponents, order.end(),
                    [&](std::uint8_t a, std::uint8_t b) {
                      return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
                    });
  Survey best;
  std::uint64_t escapes = raw_bytes / 2;
  std::size_t next = 0;
  for (const std::uint32_t width : {3U, 4U}) {
    while (next < std::size_t{1} << width) escapes -= counts[order[next++]];
    const Shape shape{raw_bytes, escapes, width};
    if (only == 0 ? width != 3 && shape.size() >= best.shape.size() : width != only) continue;
    best.shape = shape;
    best.exponents.fill(0);
    std::copy_n(order.begin(), next, best.exponents.begin());
    std::sort(best.exponents.begin(), best.exponents.begin() + static_cast<std::ptrdiff_t>(next));
  }
  return best;
}

void encode(const Survey& survey, std::span<const std::byte> raw, std::span<std::byte> code) {
  const Shape& shape = survey.shape;
  store(code.data(), survey.header());
  const std::span<const std::uint8_t> exponents(survey.exponents.data(), 1U << shape.width);
  Table table;
  table.fill(kEscape);
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    table[exponents[i]] = static_cast<std::uint8_t>(i);
  }
  const auto lowest = lowest_of_neighbours(exponents);
  std::byte* const bytes_at = code.data() + Shape::bytes_at();
  std::byte* const starts_at = code.data() + shape.starts_at();
  std::byte* const positions_at = code.data() + shape.positions_at();
  std::byte* const others_at = code.data() + shape.others_at();
  // The ends of parts that are not full.
  const auto clear = [&](std::byte* from, Bytes end) {
    std::memset(from, 0, static_cast<Bytes>(code.data() + end - from));
  };
  clear(bytes_at + shape.values(), shape.pairs_at());
  clear(starts_at + 4 * (shape.tiles() + 1), shape.positions_at());
  clear(positions_at + 2 * shape.escapes, shape.others_at());
  clear(others_at + shape.escapes, shape.size());
  std::uint32_t escapes = 0;
  Values values;
  Places places;
  Run bytes;
  for (Bytes first = 0; first < shape.values(); first += kRun) {
    if (first % kTile == 0) store(starts_at + 4 * (first / kTile), escapes);
    const Bytes count = std::min(kRun, shape.values() - first);
    load_run(raw.data() + 2 * first, count, exponents[0], values);
    if (lowest) {
      const auto last = static_cast<std::uint8_t>(exponents.size() - 1);
      const auto near = [base = *lowest, last](std::uint8_t exponent) {
        const auto place = static_cast<std::uint8_t>(exponent - base);
        return place <= last ? place : kEscape;
      };
      split(values, near, bytes, places);
    } else {
      split(
          values, [&](std::uint8_t exponent) { return table[exponent]; }, bytes, places);
    }
    const auto run = parts(code.data(), shape, first);
    std::memcpy(run.bytes, bytes.data(), count);
    store_places(places, shape.width, run);
    for (Bytes i = 0; i < kRun; i += 8) {
      auto found = load<std::uint64_t>(reinterpret_cast<const std::byte*>(&places[i])) &
                   in_each_byte(kEscape);
      for (; found != 0; found &= found - 1, ++escapes) {
        const Bytes at = i + static_cast<Bytes>(std::countr_zero(found)) / 8;
        store(positions_at + 2 * Bytes{escapes}, static_cast<std::uint16_t>(first % kTile + at));
        store(others_at + escapes, exponent_of(values[at]));
      }
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

Status seal(std::span<std::byte> code, std::span<const std::byte> raw) {
  Digest digest(raw.size());
  PENSTOCK_TRY(compare(code, raw, &digest));
  store(code.data() + offsetof(Header, digest), digest.value());
  return {};
}

Status verify(std::span<const std::byte> code, std::span<const std::byte> raw) {
  return compare(code, raw, nullptr);
}

}  // namespace penstock::codec
