// SPDX-License-Identifier: Apache-2.0
// When pages will be used next, by what followed when the program was last where it seems to be
// now.  Pure; a use costs a few look-ups, however long the program's loops are, and no memory but
// what begin() and cover() took.
//
// The history of uses is matched against itself: the *place* is where in it the program stands
// again, found by the last uses (a context, the longest that occurred before) and kept while what
// comes is what came then.  So one repetition suffices, of a loop or of any part of one, and a part
// that is left out or new costs a step or two.  Pages stand at positions of the history; that of
// a page's next use is the first behind the place.  How often matches of a length went on to be
// right says whether to go by them: where programs go by chance they do not.  Where a part of them
// does, each page's own record says whether to go by what is foreseen of it.
//
// A page that is touched again before the caller would let it leave is still in the same use: what
// every layer touches says nothing of which layer it is, and would hide what does.  A page that
// comes between others that are as foreseen, again and again, is no part of the history either.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/learning/track_record.hpp"
#include "policy/types.hpp"

namespace penstock::policy::learning {

class NextUses {
 public:
  using Position = std::int64_t;  // how many uses there were before
  static constexpr Position kNone = -1;

  void begin();              // before the first use
  void cover(PageId pages);  // those below this number may be used

  // The page is used.  Again within so few uses that is still the same use of it, which lasts.
  void use(PageId page, Position near);

  // The place: what stands there is what comes next.
  [[nodiscard]] Position place() const { return place_; }
  // Where the history ends, and with it what is foreseen.
  [[nodiscard]] Position end() const { return end_; }
  [[nodiscard]] PageId page_at(Position at) const { return entry(at).page; }
  // Where the page is foreseen to be needed: soon, while its use lasts; at its next use; or, if
  // that should have begun and not be over, when it is.  kNone: nowhere.
  [[nodiscard]] Position next(PageId page) const;
  // Whether it was last used where it was foreseen to be.
  [[nodiscard]] bool foreseen(PageId page) const { return pages_[nth(page)].foreseen; }
  // It comes true as a rule what is foreseen of the page.
  [[nodiscard]] bool trusted(PageId page) const { return record_.trusts(page); }
  // Uses between two of the page, the latest for a quarter of it; 0: it has had no second one.
  [[nodiscard]] Position interval(PageId page) const { return pages_[nth(page)].interval; }
  // Uses since the page was last used.
  [[nodiscard]] Position age(PageId page) const { return end_ - pages_[nth(page)].touched; }
  // More is right than wrong at this length of match.
  [[nodiscard]] bool sure() const;
  // How often the place went elsewhere than a few uses on: what next() said before holds no more.
  [[nodiscard]] std::uint64_t jumps() const { return jumps_; }

 private:
  static constexpr std::size_t kMost = 1 << 16;  // uses remembered
  static constexpr std::size_t kContexts = 3;

  struct Entry {
    PageId page = -1;
    Position before = kNone;  // the same page's last use
    Position until = kNone;   // how many uses there were when this one was last seen
  };
  struct PageUses {
    Position latest = kNone;  // in the history
    Position touched = 0;
    Position gap = 0;       // the longest between touches of a use that lasts
    Position interval = 0;  // between uses
    int surprises = 0;      // times it was one that strays, more than uses that were foreseen
    bool foreseen = false;  // the last one
  };
  struct Context {
    std::uint64_t factor = 0;  // that a use has in the hash when it is older than the context
    std::uint64_t hash = 0;
    std::vector<Position> ends;  // by hash, where it was last followed by something
  };
  struct Outcomes {
    std::uint32_t right = 0;
    std::uint32_t all = 0;
  };

  [[nodiscard]] Entry& entry(Position at) { return history_[nth(at) % kMost]; }
  [[nodiscard]] const Entry& entry(Position at) const { return history_[nth(at) % kMost]; }
  [[nodiscard]] bool remembered(Position at) const {
    return at >= 0 && at + static_cast<Position>(kMost) > end_;
  }
  [[nodiscard]] std::size_t level() const;
  void judge(bool right);
  void note_interval(PageUses& uses, Position since);
  bool foresaw(PageId page);
  void note_foreseen();
  [[nodiscard]] Position around_place(PageId page) const;
  void append(PageId page);
  void note_contexts(bool look);
  void look_at(Position place);
  [[nodiscard]] Position first_from(PageId page, Position at) const;

  std::vector<Entry> history_;   // a ring
  std::vector<PageUses> pages_;  // by page
  std::array<Context, kContexts> contexts_;
  Position end_ = 0;
  Position place_ = kNone;
  Position other_ = kNone;         // the place, if what was thought to be left out was
  std::size_t length_ = 0;         // of the match: uses that were as foreseen
  std::array<PageId, 8> stray_{};  // pages that came in place of what was foreseen
  std::size_t strays_ = 0;
  std::uint64_t jumps_ = 0;
  std::array<Outcomes, 16> outcomes_{};  // by level
  TrackRecord record_;
};

}  // namespace penstock::policy::learning
