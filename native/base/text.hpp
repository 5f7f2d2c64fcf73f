// SPDX-License-Identifier: Apache-2.0
// The words of messages: pieces joined, byte counts in the unit that is exact.  Only failing paths
// come here, so clarity counts and speed does not.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>

#include "base/units.hpp"

namespace penstock {

template <class... Pieces>
std::string text(const Pieces&... pieces) {
  std::ostringstream out;
  const auto add = [&out](const auto& piece) {
    if constexpr (std::is_same_v<decltype(piece), const std::uint8_t&>) {
      out << int{piece};  // a number, and no letter
    } else {
      out << piece;
    }
  };
  (add(pieces), ...);
  return out.str();
}

inline std::string size_text(Bytes size) {
  if (size >= kGiB && size % kGiB == 0) return text(size / kGiB, " GiB");
  if (size >= kMiB && size % kMiB == 0) return text(size / kMiB, " MiB");
  if (size >= kKiB && size % kKiB == 0) return text(size / kKiB, " KiB");
  return text(size, " bytes");
}

}  // namespace penstock
