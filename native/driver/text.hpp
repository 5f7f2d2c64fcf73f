// SPDX-License-Identifier: Apache-2.0
// The words of error messages: pieces joined, byte counts in the unit that is exact, addresses in
// hexadecimal.  Only failing paths come here, so clarity counts and speed does not.
#pragma once

#include <ios>
#include <sstream>
#include <string>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::driver {

template <class... Pieces>
std::string text(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

inline std::string size_text(Bytes size) {
  if (size >= kGiB && size % kGiB == 0) return text(size / kGiB, " GiB");
  if (size >= kMiB && size % kMiB == 0) return text(size / kMiB, " MiB");
  if (size >= kKiB && size % kKiB == 0) return text(size / kKiB, " KiB");
  return text(size, " bytes");
}

inline std::string address_text(Addr address) { return text("0x", std::hex, address); }

inline std::string span_text(Addr address, Bytes size) {
  return text(size_text(size), " at ", address_text(address));
}

// Both drivers refuse what the hardware would do in no particular order.
inline Status check_apart(Addr to, Addr from, Bytes size) {
  if (to - from >= size && from - to >= size) return {};
  return {Code::kInvalidArgument,
          text("copy_within: ", span_text(from, size), " overlaps ", span_text(to, size))};
}

inline Status check_fingerprint(const void* to, Bytes size, const void* fingerprint) {
  if (to != nullptr && fingerprint != nullptr && size % 16 == 0) return {};
  return {Code::kInvalidArgument, text("copy_out_changed: ", size_text(size), " to ", to,
                                       " with fingerprint ", fingerprint)};
}

}  // namespace penstock::driver
