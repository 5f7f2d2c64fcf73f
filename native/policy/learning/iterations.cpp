// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/iterations.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace penstock::policy::learning {
namespace {

// An iteration touches so many percent of what the fullest ones do.
constexpr Bytes kPercent = 90;

class Stretches {
 public:
  Stretches(std::span<const LastingUse> uses, std::span<const Bytes> bytes_of_block)
      : uses_(uses), bytes_(bytes_of_block), seen_(bytes_of_block.size(), 0) {}

  // From each of these uses to the one before which `least` distinct bytes have been touched, or
  // to the next where `least` is 0; `bytes`: what each touches.
  std::vector<std::size_t> cut(const std::vector<std::size_t>& at, Bytes least,
                               std::vector<Bytes>& bytes) {
    std::vector<std::size_t> begins{at.front()};
    bytes.clear();
    ++stretch_;
    Bytes touched = 0;
    std::size_t next = 1;
    for (std::size_t i = at.front(); i <= uses_.size(); ++i) {
      const bool end = i == uses_.size();
      if (end || (next < at.size() && at[next] == i)) {
        ++next;
        if (touched >= std::max<Bytes>(least, 1) && (!end || least > 0)) {
          begins.push_back(i);
          bytes.push_back(touched);
          ++stretch_;
          touched = 0;
        }
      }
      if (end) break;
      for (const std::uint32_t block : uses_[i].blocks) {
        if (seen_[block] == stretch_) continue;
        seen_[block] = stretch_;
        touched += bytes_[block];
      }
    }
    return begins;
  }

 private:
  std::span<const LastingUse> uses_;
  std::span<const Bytes> bytes_;
  std::vector<std::uint64_t> seen_;  // the stretch that last touched the block
  std::uint64_t stretch_ = 0;
};

// How unlike in length they are, in percent of the median; the last may have been broken off.
std::size_t unlike(const std::vector<std::size_t>& begins) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 1; i + 1 < begins.size(); ++i) lengths.push_back(begins[i] - begins[i - 1]);
  if (lengths.empty()) return 0;
  std::sort(lengths.begin(), lengths.end());
  const std::size_t eighth = lengths.size() / 8;
  return 100 * (lengths[lengths.size() - 1 - eighth] - lengths[eighth]) /
         lengths[lengths.size() / 2];
}

}  // namespace

std::vector<std::size_t> find_iterations(std::span<const LastingUse> uses,
                                         std::span<const Bytes> bytes_of_block) {
  // Codes that occur equally often are each in every iteration, or none is: the first one will do.
  std::unordered_map<std::int64_t, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < uses.size(); ++i) places[uses[i].code].push_back(i);
  std::map<std::size_t, const std::vector<std::size_t>*> anchors;
  for (const auto& [code, at] : places) {
    auto& first = anchors[at.size()];
    if (first == nullptr || at.front() < first->front()) first = &at;
  }
  anchors.erase(1);
  Stretches stretches(uses, bytes_of_block);
  std::vector<Bytes> bytes;
  Bytes most = 0;
  for (const auto& [count, at] : anchors) {
    (void)stretches.cut(*at, 0, bytes);
    if (bytes.empty()) continue;
    const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>((bytes.size() - 1) / 2);
    std::nth_element(bytes.begin(), middle, bytes.end());
    most = std::max(most, *middle);
  }
  std::vector<std::size_t> best;
  for (const auto& [count, at] : anchors) {
    std::vector<std::size_t> begins = stretches.cut(*at, most / 100 * kPercent, bytes);
    const bool more = begins.size() > best.size() + best.size() / 8;
    const bool regular =
        begins.size() + begins.size() / 8 >= best.size() && unlike(begins) < unlike(best);
    if (best.empty() || more || regular) best = std::move(begins);
  }
  return best;
}

}  // namespace penstock::policy::learning
