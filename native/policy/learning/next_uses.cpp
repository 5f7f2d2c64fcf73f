// SPDX-License-Identifier: Apache-2.0
#include "policy/learning/next_uses.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace penstock::policy::learning {
namespace {

// Not swept, but for the pauses that tell uses apart, which are the caller's.
constexpr std::array<std::size_t, 3> kLengths = {32, 12, 4};  // of contexts, the longest first
constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
constexpr int kTableBits = 15;
constexpr NextUses::Position kAround = 3;  // so far from the place a use is still as foreseen
constexpr NextUses::Position kStep = 64;   // so far ahead it is looked for what was left out
constexpr int kTries = 64;                 // uses of one page that are looked through
// Touches closer than that are of one use.  Simulated with 16: up to 9 % longer (constants.json).
constexpr NextUses::Position kLeastInterval = 4;
constexpr int kMostSurprises = 4;
// A place further back has to be alike in so many uses more.  What chance chooses is as a rule what
// it chose the last time; one thing that it had not chosen for long must not lead back to all that
// was chosen then.  Simulated with 0, 4, 6 and 12 (life-table.txt): within half a mixture whose
// experts stay takes 1.4, 1.1, 1.06 and 0.98 times as long; 12 costs AdamW up to 3 %.
constexpr std::size_t kOlder = 8;
constexpr int kRetry = 16;

}  // namespace

void NextUses::begin() {
  static_assert(kLengths.size() == kContexts);
  for (std::size_t i = 0; i < kContexts; ++i) {
    contexts_[i].factor = kFactor;
    for (std::size_t k = 0; k < kLengths[i]; ++k) contexts_[i].factor *= kFactor;
    contexts_[i].ends.assign(std::size_t{1} << kTableBits, kNone);
  }
  history_.resize(kMost);
}

void NextUses::cover(PageId pages) {
  if (nth(pages) > pages_.size()) pages_.resize(nth(pages));
  record_.cover(pages);
}

void NextUses::use(PageId page, Position near) {
  PageUses& uses = pages_[nth(page)];
  const Position since = end_ - std::exchange(uses.touched, end_);
  if (uses.latest != kNone) note_interval(uses, since);
  if (uses.latest != kNone && since < near) {
    uses.gap = std::max<Position>({uses.gap, since, 1});
    if (remembered(uses.latest)) entry(uses.latest).until = end_;
    return;
  }
  uses.gap = 0;
  // One that told nothing so far is given another chance now and then.
  if (uses.surprises >= kMostSurprises) {
    uses.foreseen = false;
    if (++uses.surprises < kMostSurprises + kRetry) return;
    uses.surprises = kMostSurprises / 2;
  }
  uses.foreseen = foresaw(page);
  if (uses.foreseen) uses.surprises = std::max(uses.surprises - 1, -kMostSurprises);
  append(page);
  note_contexts(!uses.foreseen);
  note_foreseen();
}

void NextUses::note_interval(PageUses& uses, Position since) {
  if (since < kLeastInterval) return;
  uses.interval = uses.interval == 0 ? since : uses.interval + (since - uses.interval) / 4;
}

void NextUses::note_foreseen() {
  const Position at = place_ + record_.lead();
  const bool any = sure() && at < end_;
  record_.note(any ? page_at(at) : TrackRecord::kNobody, end_,
               [this](PageId page) { return pages_[nth(page)].touched; });
}

// The page is what comes next, or one of the few around that; the place moves on.
bool NextUses::foresaw(PageId page) {
  if (place_ == kNone) return false;
  const Position around = around_place(page);
  judge(around != kNone);
  if (around != kNone && around < place_) return true;
  if (around != kNone) {
    place_ = around + 1;
    ++length_;
    other_ = kNone;
    for (std::size_t i = 0; i < strays_; ++i) ++pages_[nth(stray_[i])].surprises;
    strays_ = 0;
    return true;
  }
  if (length_ >= kLengths.back() && strays_ < stray_.size()) stray_[strays_++] = page;
  length_ -= (length_ + 3) / 4;
  // What stands before the page's next use was left out, or this one is new: the next use tells.
  if (other_ != kNone && remembered(other_) && entry(other_).page == page) {
    place_ = std::exchange(other_, kNone) + 1;
    strays_ = 0;
    return true;
  }
  const Position found = first_from(page, place_);
  other_ = found != kNone && found - place_ < kStep ? found + 1 : kNone;
  return false;
}

// Where the page stands, if that is at most a few uses from the place: what strayed there then does
// not come again, and uses of one launch come in any order.
NextUses::Position NextUses::around_place(PageId page) const {
  for (Position at = place_; at < std::min(place_ + kAround, end_); ++at) {
    if (entry(at).page == page) return at;
  }
  for (Position at = place_ - 1; at >= place_ - kAround && remembered(at); --at) {
    if (entry(at).page == page) return at;
  }
  return kNone;
}

NextUses::Position NextUses::next(PageId page) const {
  if (place_ == kNone) return kNone;
  const PageUses& uses = pages_[nth(page)];
  if (end_ - uses.touched <= 2 * uses.gap) return place_ + uses.gap;
  const Position first = first_from(page, place_);
  if (first == kNone) return kNone;
  const Position before = entry(first).before;
  return remembered(before) && entry(before).until >= place_ ? entry(before).until : first;
}

bool NextUses::sure() const {
  if (place_ == kNone) return false;
  const Outcomes& seen = outcomes_[level()];
  // Before there is experience, a match is as good as it is long.
  const auto long_ones = static_cast<std::uint32_t>(std::min<std::size_t>(length_, 8));
  return 2 * (seen.right + long_ones) > seen.all + 8;
}

std::size_t NextUses::level() const {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(length_)),
                               outcomes_.size() - 1);
}

void NextUses::judge(bool right) {
  Outcomes& seen = outcomes_[level()];
  seen.right += right;
  if (++seen.all == 256) seen = {seen.right / 2, seen.all / 2};
}

void NextUses::append(PageId page) {
  entry(end_) = {page, std::exchange(pages_[nth(page)].latest, end_), end_};
  ++end_;
  if (place_ != kNone && !remembered(place_)) {
    place_ = kNone;
    length_ = 0;
  }
}

// look: for another place, where more of the last uses are alike than the match has.
void NextUses::note_contexts(bool look) {
  const PageId page = entry(end_ - 1).page;
  for (std::size_t i = 0; i < kContexts; ++i) {
    Context& context = contexts_[i];
    context.hash = (context.hash + static_cast<std::uint64_t>(page) + 1) * kFactor;
    const auto oldest = end_ - 1 - static_cast<Position>(kLengths[i]);
    if (oldest >= 0) {
      context.hash -= (static_cast<std::uint64_t>(entry(oldest).page) + 1) * context.factor;
    }
    Position& seen = context.ends[context.hash >> (64 - kTableBits)];
    if (look) look_at(seen);
    seen = end_;
  }
  if (look && entry(end_ - 1).before != kNone) look_at(entry(end_ - 1).before + 1);
}

void NextUses::look_at(Position place) {
  if (place == kNone || !remembered(place)) return;
  std::size_t alike = 0;
  while (alike < kLengths.front()) {
    const auto back = static_cast<Position>(alike) + 1;
    if (!remembered(place - back) || entry(place - back).page != entry(end_ - back).page) break;
    ++alike;
  }
  const std::size_t more = length_ > 0 && place < place_ ? kOlder : 0;
  if (alike <= length_ + more || place == place_) return;
  place_ = place;
  other_ = kNone;
  strays_ = 0;
  length_ = alike;
  ++jumps_;
}

// The page's first use that begins at this position or behind it.
NextUses::Position NextUses::first_from(PageId page, Position at) const {
  Position found = kNone;
  Position use = pages_[nth(page)].latest;
  for (int i = 0; i < kTries && use >= at && remembered(use); ++i) {
    found = use;
    use = entry(use).before;
  }
  return found;
}

}  // namespace penstock::policy::learning
