// SPDX-License-Identifier: Apache-2.0
// Residency where memory moves in large groups, one call each, instead of pages through slots: of
// every group a prefix stays on the device, and the rest of it streams.
//
// Streaming whole groups would cost a budget of few groups most of its room: with a look-ahead of
// two, three groups' worth is always in transit.  When every group streams a part of at most the
// same size, that transit takes three parts, and the copies are spread evenly over the steps, so
// that they hide behind compute.  Pure: data in, shares out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "policy/types.hpp"

namespace penstock::policy {

struct PrefixOptions {
  Bytes budget = 0;
  Bytes granularity = 1;        // of prefixes; groups' sizes are multiples of it
  std::int32_t look_ahead = 1;  // groups on their way beyond the running step's own
};

struct Prefixes {
  std::vector<Bytes> kept;      // of each group, from its start
  std::int32_t look_ahead = 0;  // at most the one asked for: what the budget allows
  Bytes bytes_in = 0;           // that one iteration moves, each streamed part once
};

// Pages are the groups.  kOutOfMemory when the groups of one step exceed the budget,
// kInvalidArgument when the sequence is not valid or a size is no multiple of the granularity.
// Guarantees: at every step, everything kept, the streamed parts of the step's own groups and those
// of the next `look_ahead` groups that stream fit the budget.  Groups that no step uses stay only
// where everything does.
Result<Prefixes> keep_prefixes(const Sequence& sequence, const PrefixOptions& options);

}  // namespace penstock::policy
