// SPDX-License-Identifier: Apache-2.0
// The ladder of a request that finds no memory: what is tried next, from what costs nothing to what
// waits for every stream.  A step that cannot help is left out.  Pure.
#pragma once

#include <cstdint>

namespace penstock::policy::packing {

enum class Recovery : std::uint8_t {
  kStart,     // nothing has been tried yet
  kLetIn,     // a request that was kept apart may have what other streams' finished work freed
  kJoin,      // join what is there, however small the request
  kBehind,    // the other streams' memory, behind their work
  kAwait,     // blocks that were freed while other streams used them: the host waits
  kGiveBack,  // cached chunks, of other pools too
  kGiveUp
};

struct Shortage {
  bool apart = false;    // the request is kept apart from what others freed
  bool shared = false;   // its pool may take what other streams freed, and no stream captures
  bool freed = false;    // others have freed something
  bool awaited = false;  // blocks are free once other streams' work is over
};

[[nodiscard]] constexpr Recovery next_step(Recovery last, const Shortage& there) {
  switch (last) {
    case Recovery::kStart:
      if (there.apart) return Recovery::kLetIn;
      [[fallthrough]];
    case Recovery::kLetIn:
      return Recovery::kJoin;
    case Recovery::kJoin:
      if (there.shared && there.freed) return Recovery::kBehind;
      [[fallthrough]];
    case Recovery::kBehind:
      if (there.awaited) return Recovery::kAwait;
      [[fallthrough]];
    case Recovery::kAwait:
      return Recovery::kGiveBack;
    default:
      return Recovery::kGiveUp;
  }
}

}  // namespace penstock::policy::packing
