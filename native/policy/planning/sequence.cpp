// SPDX-License-Identifier: Apache-2.0
#include "policy/planning/sequence.hpp"

namespace penstock::policy {

Status validate(const Sequence& sequence) {
  const std::size_t pages = sequence.page_bytes.size();
  std::vector<std::size_t> seen(pages, 0);  // the last step, counted from 1, that listed the page
  for (std::size_t step = 0; step < sequence.steps.size(); ++step) {
    for (const PageId page : sequence.steps[step].pages) {
      if (page < 0 || nth(page) >= pages) {
        return invalid("step ", step, " uses page ", page, " of ", pages,
                       "; pages are numbered from 0");
      }
      std::size_t& last = seen[nth(page)];
      if (last == step + 1) {
        return invalid("step ", step, " lists page ", page,
                       " twice; list every page of a step once");
      }
      last = step + 1;
    }
  }
  return {};
}

}  // namespace penstock::policy
