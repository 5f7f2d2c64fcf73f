// SPDX-License-Identifier: Apache-2.0
#include "engine/timeline.hpp"

#include <algorithm>

namespace penstock::engine {

Timeline::~Timeline() {
  for (Tick i = 0; i < created_; ++i) (void)driver_.destroy_event(events_[i]);
}

Tick Timeline::standing_for(Tick tick) const {
  const Tick oldest = latest_ >= kRing ? latest_ - kRing + 1 : 1;
  return std::max(tick, oldest);
}

Result<Tick> Timeline::record() {
  const Tick next = latest_ + 1;
  if (created_ < std::min(next, kRing)) {
    PENSTOCK_ASSIGN(events_[created_], driver_.create_event(false));
    ++created_;
  }
  PENSTOCK_TRY(driver_.record(event_of(next), stream_));
  latest_ = next;
  return next;
}

Status Timeline::make_wait(driver::Stream stream, Tick tick) {
  if (tick <= reached_ || stream == stream_) return {};
  return driver_.wait(stream, event_of(standing_for(tick)));
}

Status Timeline::synchronize(Tick tick) {
  if (tick <= reached_) return {};
  const Tick standing = standing_for(tick);
  PENSTOCK_TRY(driver_.synchronize(event_of(standing)));
  reached_ = standing;
  return {};
}

Result<bool> Timeline::reached(Tick tick) {
  if (tick <= reached_) return true;
  const Tick standing = standing_for(tick);
  const Status status = driver_.query(event_of(standing));
  if (status.code() == Code::kNotReady) return false;
  PENSTOCK_TRY(status);
  reached_ = standing;
  return true;
}

}  // namespace penstock::engine
