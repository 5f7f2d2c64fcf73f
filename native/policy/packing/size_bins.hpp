// SPDX-License-Identifier: Apache-2.0
// A set of sized things, found by size in constant time: two levels of bins (Masmano et al., TLSF,
// ECRTS 2004), exact up to 32 KiB, 3 % wide beyond, with the best of a few in the bin.
//
// Links live in an array that several sets can share as long as a thing is in one of them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace penstock::policy::packing {

// Sizes and addresses of blocks are multiples of this, as in PyTorch's allocator.
inline constexpr Bytes kUnit = 512;
inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

struct BinLink {
  Bytes bytes = 0;
  std::uint64_t rank = 0;  // decides between equals: the lower one
  std::uint32_t before = kNone;
  std::uint32_t after = kNone;
};

class SizeBins {
 public:
  SizeBins() { heads_.fill(kNone); }

  void insert(std::vector<BinLink>& links, std::uint32_t id, Bytes bytes, std::uint64_t rank = 0) {
    const std::uint32_t bin = bin_of(bytes);
    const std::uint32_t head = heads_[bin];
    links[id] = {bytes, rank, kNone, head};
    if (head != kNone) links[head].before = id;
    heads_[bin] = id;
    used_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  }
  void erase(std::vector<BinLink>& links, std::uint32_t id) {
    const BinLink link = links[id];
    if (link.after != kNone) links[link.after].before = link.before;
    if (link.before != kNone) {
      links[link.before].after = link.after;
      return;
    }
    const std::uint32_t bin = bin_of(link.bytes);
    heads_[bin] = link.after;
    if (link.after == kNone) used_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
  }

  // The smallest of at least `bytes` that a bounded search finds, or kNone; of equals the one with
  // the lowest rank, so that what is chosen does not depend on what was freed last.
  [[nodiscard]] std::uint32_t best(const std::vector<BinLink>& links, Bytes bytes) const {
    std::uint32_t best = kNone;
    const std::uint32_t own = bin_of(bytes);
    // In the request's own bin some are too small; in the next one none is.
    for (std::uint32_t bin = next_bin(own); bin != kNone; bin = next_bin(bin + 1)) {
      int left = kSearch;
      for (std::uint32_t id = heads_[bin]; id != kNone && left > 0; id = links[id].after, --left) {
        const BinLink& link = links[id];
        if (link.bytes < bytes) continue;
        if (best == kNone || link.bytes < links[best].bytes ||
            (link.bytes == links[best].bytes && link.rank < links[best].rank)) {
          best = id;
        }
      }
      if (best != kNone || bin > own) break;
    }
    return best;
  }

  // visit(id) for all of at least `bytes`, smaller bins first, until it returns false.  visit may
  // erase the one that it is given.
  template <class Visit>
  void each_from(const std::vector<BinLink>& links, Bytes bytes, Visit&& visit) const {
    for (std::uint32_t bin = next_bin(bin_of(bytes)); bin != kNone; bin = next_bin(bin + 1)) {
      for (std::uint32_t id = heads_[bin]; id != kNone;) {
        const std::uint32_t after = links[id].after;
        if (links[id].bytes >= bytes && !visit(id)) return;
        id = after;
      }
    }
  }

 private:
  static constexpr std::uint32_t kExact = 64;      // bins of one unit each
  static constexpr std::uint32_t kPerDouble = 32;  // bins between two powers of two
  static constexpr std::uint32_t kBins = 1024;
  static constexpr int kSearch = 16;

  static std::uint32_t bin_of(Bytes bytes) {
    const std::uint64_t units = bytes / kUnit;
    if (units < kExact) return static_cast<std::uint32_t>(units);
    const int top = std::bit_width(units) - 1;  // at least 6
    const auto within = static_cast<std::uint32_t>((units >> (top - 5)) & (kPerDouble - 1));
    return kExact + static_cast<std::uint32_t>(top - 6) * kPerDouble + within;
  }
  [[nodiscard]] std::uint32_t next_bin(std::uint32_t bin) const {
    if (bin >= kBins) return kNone;
    std::uint32_t word = bin / 64;
    std::uint64_t bits = used_[word] & (~std::uint64_t{0} << (bin % 64));
    while (bits == 0) {
      if (++word == used_.size()) return kNone;
      bits = used_[word];
    }
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
  }

  std::array<std::uint32_t, kBins> heads_;
  std::array<std::uint64_t, kBins / 64> used_{};
};

}  // namespace penstock::policy::packing
