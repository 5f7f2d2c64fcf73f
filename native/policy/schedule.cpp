// SPDX-License-Identifier: Apache-2.0
// schedule(): draft plans in several ways and with more or less look-ahead (draft.hpp), and take
// the one that the time model likes best among those that move no more than LRU would.
#include "policy/schedule.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "policy/draft.hpp"
#include "policy/residency.hpp"
#include "policy/sequence.hpp"
#include "policy/time_model.hpp"

namespace penstock::policy {
namespace {

// Plans within this share of each other are taken for equal, and the one with more look-ahead wins:
// the machine is less regular than the model.
constexpr double kMargin = 0.002;

// Where the times are not known, a step is taken to compute for a tenth of the time that its pages
// take to copy: measured at 26.4 ms of compute for 251 ms of copies on a forward of GPT-3 6.7B.
constexpr double kNominalCompute = 0.1;

// Steps and link with times in them, for the time model.
struct Clocked {
  Sequence sequence;
  Link link;
  bool known;
};

Clocked with_times(const Sequence& sequence, const Link& link) {
  Clocked result{sequence, link, link.bytes_per_ms > 0};
  for (const Step& step : sequence.steps) {
    result.known = result.known && (step.compute_ms > 0 || step.pages.empty());
  }
  if (result.known) return result;
  result.link = {1, 0};
  for (Step& step : result.sequence.steps) {
    double bytes = 0;
    for (const PageId page : step.pages) {
      bytes += static_cast<double>(sequence.page_bytes[static_cast<std::size_t>(page)]);
    }
    step.compute_ms = kNominalCompute * bytes;
  }
  return result;
}

// The best plan so far.
class Choice {
 public:
  Choice(const Clocked& clocked, Bytes most) : clocked_(clocked), most_(most) {}

  void offer(Plan plan) {
    const bool allowed = plan.bytes_in <= most_;
    if (best_ && allowed < allowed_) return;
    const double ms = simulate_plan(clocked_.sequence, plan, clocked_.link).step_ms;
    // Where no plan is allowed the fewest bytes are what matters.
    const bool better = !best_ || allowed > allowed_ ||
                        (allowed ? ms < ms_ * (1 - kMargin) : plan.bytes_in < best_->bytes_in);
    if (!better) return;
    best_ = std::move(plan);
    allowed_ = allowed;
    ms_ = ms;
  }

  [[nodiscard]] bool allowed() const { return allowed_; }
  [[nodiscard]] Plan take() && { return std::move(*best_); }

 private:
  const Clocked& clocked_;
  Bytes most_;
  std::optional<Plan> best_;
  bool allowed_ = false;
  double ms_ = 0;
};

Status check_options(const Sequence& sequence, const ScheduleOptions& options) {
  PENSTOCK_TRY(validate(sequence));
  if (options.slots < 0 || options.look_ahead < 0 || !(options.link.bytes_per_ms >= 0) ||
      !(options.link.latency_ms >= 0)) {
    return {Code::kInvalidArgument,
            "a plan needs slots, a look-ahead and a link of 0 or more, not " +
                std::to_string(options.slots) + ", " + std::to_string(options.look_ahead) +
                " and " + std::to_string(options.link.bytes_per_ms) + " bytes/ms"};
  }
  if (const std::int32_t needed = smallest_pool(sequence); options.slots < needed) {
    return {Code::kOutOfMemory, "the largest step needs " + std::to_string(needed) +
                                    " slots and the pool has " + std::to_string(options.slots)};
  }
  return {};
}

// One by one where the time model chooses among them all, else in halves.
std::int32_t less(std::int32_t look_ahead, bool finely) {
  if (look_ahead == 0) return -1;
  return finely && look_ahead <= 4 ? look_ahead - 1 : look_ahead / 2;
}

}  // namespace

std::int32_t smallest_pool(const Sequence& sequence) {
  std::size_t most = 0;
  for (const Step& step : sequence.steps) most = std::max(most, step.pages.size());
  return static_cast<std::int32_t>(most);
}

Result<Plan> schedule(const Sequence& sequence, const ScheduleOptions& options) {
  PENSTOCK_TRY(check_options(sequence, options));
  const Clocked clocked = with_times(sequence, options.link);
  const Drafts drafts(sequence, options.slots, clocked.known);
  if (drafts.everything_fits()) return drafts.keep_everything();
  PENSTOCK_ASSIGN(const Traffic lru, replay(sequence, options.slots, Replacement::kLru, 2));
  Choice choice(clocked, options.may_exceed_lru ? std::numeric_limits<Bytes>::max() : lru.bytes_in);
  for (std::int32_t ahead = options.look_ahead; ahead >= 0; ahead = less(ahead, clocked.known)) {
    choice.offer(drafts.of_pages(ahead));
    if (drafts.has_loops()) choice.offer(drafts.of_gaps(ahead));
    if (choice.allowed() && (!clocked.known || ahead <= 1)) break;
  }
  if (!choice.allowed()) choice.offer(drafts.like_lru(options.may_turn));
  return std::move(choice).take();
}

}  // namespace penstock::policy
