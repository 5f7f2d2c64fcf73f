// SPDX-License-Identifier: Apache-2.0
// The models of PyTorch's allocators: each documented rule on its own, and the books after any
// sequence of calls.  How close they come to runs of the real thing is tested on recorded traces
// (tests/unit/test_replay_models.py).
#include <memory>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "lab/models/expandable_model.hpp"
#include "lab/models/native_model.hpp"

namespace penstock::policy::baseline {
namespace {

using Handle = std::uint64_t;

Handle take(Model& model, Bytes bytes, std::uint32_t stream = 0) {
  Handle block = 0;
  REQUIRE(model.allocate(bytes, stream, block).ok());
  return block;
}

bool has_room(Model& model, Bytes bytes, std::uint32_t stream = 0) {
  Handle block = 0;
  return model.allocate(bytes, stream, block).ok();
}

TEST_CASE("native model: segments have the documented sizes") {
  const auto reserved_by = [](Bytes bytes) {
    NativeModel model(kTiB);
    take(model, bytes);
    return model.reserved();
  };
  CHECK(reserved_by(1) == 2 * kMiB);
  CHECK(reserved_by(kMiB) == 2 * kMiB);
  CHECK(reserved_by(kMiB + 1) == 20 * kMiB);
  CHECK(reserved_by(10 * kMiB - 512) == 20 * kMiB);
  CHECK(reserved_by(10 * kMiB - 1) == 10 * kMiB);  // 10 MiB, once rounded to 512
  CHECK(reserved_by(10 * kMiB) == 10 * kMiB);
  CHECK(reserved_by(11 * kMiB + 1) == 12 * kMiB);
}

TEST_CASE("native model: small requests share a segment, 512 bytes at the least") {
  NativeModel model(kTiB);
  for (int i = 0; i < 4096; ++i) take(model, 1);
  CHECK(model.reserved() == 2 * kMiB);
  take(model, 1);
  CHECK(model.reserved() == 4 * kMiB);
  take(model, kMiB);  // still a small one
  CHECK(model.reserved() == 4 * kMiB);
}

TEST_CASE("native model: what a large request leaves is split off above 1 MiB") {
  NativeModel model(kTiB);
  take(model, 19 * kMiB);  // a segment of 20 MiB: the rest of 1 MiB stays with the block
  CHECK(model.reserved() == 20 * kMiB);
  take(model, 2 * kMiB);  // so this needs a segment of its own, 20 MiB with a rest of 18 MiB
  CHECK(model.reserved() == 40 * kMiB);
  take(model, 18 * kMiB);
  CHECK(model.reserved() == 40 * kMiB);
}

TEST_CASE("native model: free neighbours join, segments never do") {
  NativeModel model(kTiB);
  const Handle a = take(model, 6 * kMiB);  // three in 20 MiB
  const Handle b = take(model, 6 * kMiB);
  const Handle c = take(model, 6 * kMiB);
  const Handle other = take(model, 20 * kMiB);
  CHECK(model.reserved() == 40 * kMiB);
  CHECK(model.free(a).ok());
  CHECK(model.free(c).ok());
  CHECK(model.free(b).ok());
  take(model, 20 * kMiB);  // all of the first segment
  CHECK(model.reserved() == 40 * kMiB);
  CHECK(model.free(other).ok());
  take(model, 21 * kMiB);  // 20 MiB are free, not enough
  CHECK(model.reserved() == 62 * kMiB);
}

TEST_CASE("native model: the smallest block that fits is taken, of the same stream") {
  NativeModel model(kTiB);
  const Handle large = take(model, 40 * kMiB);
  const Handle small = take(model, 30 * kMiB);
  CHECK(model.free(large).ok());
  CHECK(model.free(small).ok());
  take(model, 29 * kMiB);  // from the 30 MiB
  take(model, 40 * kMiB);
  CHECK(model.reserved() == 70 * kMiB);
  take(model, 512, 0);
  take(model, 512, 1);
  CHECK(model.reserved() == 74 * kMiB);
}

TEST_CASE("native model: free segments are given back before a request fails") {
  NativeModel model(100 * kMiB);
  const Handle a = take(model, 60 * kMiB);
  take(model, 30 * kMiB);
  CHECK(model.free(a).ok());
  take(model, 70 * kMiB);  // more than the free segment
  CHECK(model.reserved() == 100 * kMiB);
  CHECK(model.peak_reserved() == 100 * kMiB);
  CHECK(model.calls().unmapped == 1);
  CHECK_FALSE(has_room(model, 2 * kMiB));
  CHECK_FALSE(has_room(model, 200 * kMiB));
  CHECK(model.reserved() == 100 * kMiB);
}

TEST_CASE("native model: a segment in use stays, whichever part of it is free") {
  NativeModel model(60 * kMiB);
  const Handle first = take(model, 6 * kMiB);
  take(model, 6 * kMiB);
  const Handle last = take(model, 6 * kMiB);
  CHECK(model.free(first).ok());
  CHECK(model.free(last).ok());
  CHECK_FALSE(has_room(model, 50 * kMiB));
  CHECK(model.calls().unmapped == 0);
  CHECK(model.reserved() == 20 * kMiB);
  take(model, 40 * kMiB);
  take(model, 6 * kMiB);
  CHECK(model.reserved() == 60 * kMiB);
}

TEST_CASE("expandable model: one range grows by pages") {
  ExpandableModel model(kTiB);
  take(model, 3 * kMiB);
  CHECK(model.reserved() == 20 * kMiB);
  take(model, 30 * kMiB);  // the 17 MiB that are free, and one page
  CHECK(model.reserved() == 40 * kMiB);
  CHECK(model.calls().map == 2);
  CHECK(model.calls().accessed == 2);
  take(model, 1);  // the small pool: a page of 2 MiB
  CHECK(model.reserved() == 42 * kMiB);
  take(model, 3 * kMiB, 1);  // a range for each stream
  CHECK(model.reserved() == 62 * kMiB);
}

TEST_CASE("expandable model: any rest is split off") {
  ExpandableModel model(kTiB);
  take(model, 20 * kMiB - 600 * kKiB);
  take(model, 40 * kMiB + 600 * kKiB);
  CHECK(model.reserved() == 60 * kMiB);
}

TEST_CASE("expandable model: the block at the edge is used last") {
  ExpandableModel model(kTiB);
  const Handle hole = take(model, 15 * kMiB);
  take(model, 2 * kMiB);  // 3 MiB are left at the edge
  CHECK(model.free(hole).ok());
  take(model, 2 * kMiB);   // the edge is the smaller, and yet this is from the hole
  take(model, 23 * kMiB);  // so that there are 3 MiB to grow from
  CHECK(model.reserved() == 40 * kMiB);
}

TEST_CASE("expandable model: pages of holes are mapped again elsewhere") {
  ExpandableModel model(100 * kMiB);
  const Handle hole = take(model, 60 * kMiB);
  take(model, 20 * kMiB);
  CHECK(model.free(hole).ok());
  take(model, 70 * kMiB);  // three pages of the hole go, and 70 MiB grow at the end
  CHECK(model.reserved() == 100 * kMiB);
  CHECK(model.calls().unmapped == 3);
  CHECK_FALSE(has_room(model, 20 * kMiB));
}

TEST_CASE("expandable model: a hole of part of a page stays") {
  ExpandableModel model(60 * kMiB);
  const Handle hole = take(model, 39 * kMiB);
  take(model, 2 * kMiB);  // from the last MiB of the second page into the third
  CHECK(model.free(hole).ok());
  CHECK_FALSE(has_room(model, 41 * kMiB));
  CHECK(model.calls().unmapped == 1);
  take(model, 39 * kMiB);  // and the hole can be filled again
  CHECK(model.reserved() == 60 * kMiB);
}

// Whatever happens: what is reserved covers what is live, stays within the capacity, and is enough
// for the same live blocks again once all is freed.
TEST_CASE("models: the books hold after any sequence of calls") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    for (const bool expandable : {false, true}) {
      CAPTURE(expandable);
      const Bytes capacity = 400 * kMiB;
      std::unique_ptr<Model> model;
      if (expandable)
        model = std::make_unique<ExpandableModel>(capacity);
      else
        model = std::make_unique<NativeModel>(capacity);
      std::mt19937 random(seed);
      std::vector<std::pair<Handle, Bytes>> live;
      Bytes held = 0;
      for (int i = 0; i < 3000; ++i) {
        if (random() % 5 < 3) {
          const Bytes bytes = (random() % 3 == 0 ? random() % (40 * kMiB) : random() % kMiB) + 1;
          Handle block = 0;
          if (model->allocate(bytes, random() % 2, block).ok()) {
            live.emplace_back(block, bytes);
            held += bytes;
          }
        } else if (!live.empty()) {
          std::swap(live[random() % live.size()], live.back());
          CHECK(model->free(live.back().first).ok());
          held -= live.back().second;
          live.pop_back();
        }
        REQUIRE(held <= model->reserved());
        REQUIRE(model->reserved() <= capacity);
      }
      for (const auto& [block, bytes] : live) CHECK(model->free(block).ok());
      CHECK(has_room(*model, capacity - 20 * kMiB, 7));  // everything came back
    }
  }
}

}  // namespace
}  // namespace penstock::policy::baseline
