// SPDX-License-Identifier: Apache-2.0
// The driver contract in executable form: every rule of driver.hpp as a function over any Driver.
// No kernel is needed: bytes are written and read by copies and fills.  test_conformance_host.cpp
// runs the rules on the emulated GPU, test_conformance_cuda.cpp on a real one where there is one.
// Thread rule: one rule at a time; rules start and join threads of their own.
#pragma once

#include <vector>

#include "driver/driver.hpp"

namespace penstock::driver::conformance {

struct Rule {
  const char* name;
  void (*keep)(Driver&);  // fails the running test where the driver does not
};

std::vector<Rule> rules_of_ranges();
std::vector<Rule> rules_of_mappings();
std::vector<Rule> rules_of_copies();
std::vector<Rule> rules_of_streams();
std::vector<Rule> rules_of_managed();

inline const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> rules;
    for (const auto list : {rules_of_ranges, rules_of_mappings, rules_of_copies, rules_of_streams,
                            rules_of_managed}) {
      for (const Rule& rule : list()) rules.push_back(rule);
    }
    return rules;
  }();
  return all;
}

}  // namespace penstock::driver::conformance
