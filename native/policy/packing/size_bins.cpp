// SPDX-License-Identifier: Apache-2.0
#include "policy/packing/size_bins.hpp"

namespace penstock::policy::packing {

void SizeBins::insert(std::vector<BinLink>& links, std::uint32_t id, Bytes bytes,
                      std::uint64_t rank) {
  const std::uint32_t bin = bin_of(bytes);
  const std::uint32_t head = heads_[bin];
  links[id] = {bytes, rank, kNone, head};
  if (head != kNone) links[head].before = id;
  heads_[bin] = id;
  used_[bin / 64] |= std::uint64_t{1} << (bin % 64);
}

void SizeBins::erase(std::vector<BinLink>& links, std::uint32_t id) {
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

std::uint32_t SizeBins::best(const std::vector<BinLink>& links, Bytes bytes) const {
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

std::uint32_t SizeBins::next_bin(std::uint32_t bin) const {
  if (bin >= kBins) return kNone;
  std::uint32_t word = bin / 64;
  std::uint64_t bits = used_[word] & (~std::uint64_t{0} << (bin % 64));
  while (bits == 0) {
    if (++word == used_.size()) return kNone;
    bits = used_[word];
  }
  return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
}

}  // namespace penstock::policy::packing
