// SPDX-License-Identifier: Apache-2.0
// Counts of what was made to fail, for tests/faults.py: lines in the file that PENSTOCK_FAULTS
// names.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "doctest/doctest.h"

namespace penstock::testing {

// Adds what the test that runs has made fail; without such a file, nothing.
inline void tell_faults(const char* what, std::int64_t count) {
  const char* const path = std::getenv("PENSTOCK_FAULTS");
  if (path == nullptr) return;
  std::ofstream(path, std::ios::app)
      << doctest::getContextOptions()->currentTest->m_name << '\t' << what << '\t' << count << '\n';
}

}  // namespace penstock::testing
