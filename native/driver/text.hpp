// SPDX-License-Identifier: Apache-2.0
// The words of messages about memory, and the refusals that all drivers share.
#pragma once

#include <ios>
#include <string>

#include "base/status.hpp"
#include "base/text.hpp"

namespace penstock::driver {

using penstock::size_text;
using penstock::text;

inline std::string address_text(Addr address) { return text("0x", std::hex, address); }

inline std::string span_text(Addr address, Bytes size) {
  return text(size_text(size), " at ", address_text(address));
}

// Both drivers refuse what the hardware would do in no particular order.
inline Status check_apart(const Span& to, const Span& from) {
  if (to.address - from.address >= from.bytes && from.address - to.address >= to.bytes) return {};
  return invalid(span_text(from.address, from.bytes), " overlaps ",
                 span_text(to.address, to.bytes));
}

inline Status check_codes(const char* what, const Span& to, const Span& from) {
  if (to.address % 16 != 0 || from.address % 16 != 0) {
    return invalid(what, ": ", address_text(from.address), " to ", address_text(to.address),
                   " is not in multiples of 16");
  }
  return check_apart(to, from);
}

inline Status check_fingerprint(const void* to, Bytes size, const void* fingerprint) {
  if (to != nullptr && fingerprint != nullptr && size % 16 == 0) return {};
  return invalid("copy_out_changed: ", size_text(size), " to ", to, " with fingerprint ",
                 fingerprint);
}

}  // namespace penstock::driver
