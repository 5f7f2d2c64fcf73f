// SPDX-License-Identifier: Apache-2.0
// Packing: the extents of a pool against a plain model of its bytes, and what the packer decides.
#include <algorithm>
#include <map>
#include <random>

#include "doctest/doctest.h"
#include "policy/packing/packer.hpp"

namespace penstock::testing {
namespace {

using namespace policy::packing;  // NOLINT(google-build-using-namespace)

constexpr Bytes kChunk = 64 * kKiB;

Options small_options() {
  Options options;
  options.smallest_chunk = kChunk;
  options.largest_chunk = kChunk;
  options.growth_bytes = 2 * kChunk;
  options.stitch_limit = kChunk / 2;
  return options;
}

// The tiling has no gap, free neighbours of one stream are one, and sums and covers agree.
void check_tiling(const Extents& extents) {
  std::uint64_t at = 0;
  std::map<StreamTag, Bytes> free;
  for (StreamTag tag = 0; tag < 8; ++tag) free[tag] = 0;
  ExtentId before = kNone;
  std::size_t vacant = 0;
  for (ExtentId id = extents.first(); id != kNone; id = extents[id].after) {
    const Extent& extent = extents[id];
    REQUIRE(extent.start == at);
    REQUIRE(extent.before == before);
    REQUIRE(extent.bytes > 0);
    REQUIRE(extents.at(extent.start) == id);
    REQUIRE(extents.at(extent.end() - 1) == id);
    if (extent.state == ExtentState::kFree) free[extent.tag] += extent.bytes;
    if (extent.state == ExtentState::kVacant) {
      ++vacant;
      REQUIRE(extents.vacancies().contains(extent.start));
    }
    if (before != kNone && extents[before].state == ExtentState::kFree &&
        extent.state == ExtentState::kFree) {
      REQUIRE(extents[before].tag != extent.tag);
    }
    before = id;
    at = extent.end();
  }
  REQUIRE(at == extents.slots() * extents.slot_bytes());
  for (const auto& [tag, bytes] : free) REQUIRE(bytes == extents.free_bytes(tag));
  REQUIRE(vacant == extents.vacancies().size());
}

Bytes free_bytes(const Extents& extents) {
  Bytes bytes = 0;
  for (ExtentId id = extents.first(); id != kNone; id = extents[id].after) {
    if (extents[id].state == ExtentState::kFree) bytes += extents[id].bytes;
  }
  return bytes;
}

// A program over one packer: every step that it asks for succeeds, up to a number of chunks.
class Program {
 public:
  explicit Program(const Options& options, std::uint64_t chunks = 4096)
      : packer_(options, chunks), options_(options), left_(chunks / 2) {}

  BlockId allocate(Bytes bytes, StreamTag tag = 1) {
    Request request{.bytes = bytes, .tag = tag, .growable = left_};
    for (;;) {
      request.growable = left_;
      Decision decision = packer_.place(request);
      switch (decision.kind) {
        case Decision::Kind::kPlaced:
          return decision.block;
        case Decision::Kind::kFull:
          return kNone;
        case Decision::Kind::kGrow:
          REQUIRE(decision.slots() > 0);
          REQUIRE(decision.slots() <= left_);
          left_ -= decision.slots();
          grown_ += decision.slots();
          packer_.grown(decision, tag);
          break;
        case Decision::Kind::kStitch:
          ++stitches_;
          return packer_.place_in(request, packer_.stitched(decision.pieces));
      }
    }
  }

  // Where the block's bytes lie in the line.
  std::vector<Piece> bytes_of(BlockId id) {
    const Block& block = packer_.block(id);
    if (block.range == kNone) return {{block.offset, block.bytes}};
    std::vector<Piece> pieces;
    Bytes left = block.bytes;
    for (const Piece& piece : packer_.ranges()[block.range].pieces) {
      pieces.push_back({piece.start, std::min(left, piece.bytes)});
      left -= pieces.back().bytes;
      if (left == 0) break;
    }
    REQUIRE(left == 0);
    return pieces;
  }

  Packer& packer() { return packer_; }
  [[nodiscard]] std::uint64_t grown() const { return grown_; }
  [[nodiscard]] int stitches() const { return stitches_; }

 private:
  Packer packer_;
  Options options_;
  std::uint64_t left_;
  std::uint64_t grown_ = 0;
  int stitches_ = 0;
};

Bytes random_size(std::mt19937_64& random) {
  const Bytes scale = Bytes{512} << random() % 11;
  return 1 + random() % scale;
}

TEST_CASE("packing: no two live blocks share a byte, whatever the order") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Options options = small_options();
    options.stitch_when = static_cast<StitchWhen>(seed % 4);
    options.grow_exactly = seed % 3 != 0;
    options.largest_chunk = kChunk << seed % 4;
    options.chunks_a_growth = 1 + seed % 5;
    Program program(options, 256);
    std::map<std::uint64_t, std::pair<std::uint64_t, BlockId>> taken;  // start -> end, block
    std::vector<BlockId> live;
    std::uint32_t epoch = 1;
    for (int step = 0; step < 1500; ++step) {
      const auto tag = static_cast<StreamTag>(1 + random() % (seed % 2 ? 1 : 3));
      if (live.size() > 60 || (!live.empty() && random() % 5 < 2)) {
        const std::size_t which = random() % live.size();
        for (const Piece& piece : program.bytes_of(live[which])) taken.erase(piece.start);
        program.packer().release(live[which], epoch++);
        live[which] = live.back();
        live.pop_back();
      } else {
        const BlockId id = program.allocate(random_size(random), tag);
        if (id == kNone) continue;
        for (const Piece& piece : program.bytes_of(id)) {
          auto next = taken.lower_bound(piece.start);
          if (next != taken.end()) REQUIRE(next->first >= piece.start + piece.bytes);
          if (next != taken.begin()) REQUIRE(std::prev(next)->second.first <= piece.start);
          taken[piece.start] = {piece.start + piece.bytes, id};
        }
        live.push_back(id);
      }
      if (random() % 50 == 0) {
        program.packer().hand_over(static_cast<StreamTag>(1 + random() % 3), tag, epoch);
      }
      if (step % 20 == 0) check_tiling(program.packer().extents());
    }
    for (const BlockId id : live) program.packer().release(id, epoch);
    program.packer().hand_over(1, 3, epoch);
    program.packer().hand_over(2, 3, epoch);
    check_tiling(program.packer().extents());
    CHECK(program.packer().live_blocks() == 0);
    CHECK(free_bytes(program.packer().extents()) == program.grown() * kChunk);
  }
}

TEST_CASE("packing: scattered free memory serves a request larger than each part of it") {
  Program program(small_options());
  std::vector<BlockId> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(program.allocate(kChunk));
  const std::uint64_t grown = program.grown();
  for (int i = 0; i < 8; i += 2) program.packer().release(blocks[i], 1);
  const BlockId joined = program.allocate(4 * kChunk);
  REQUIRE(joined != kNone);
  CHECK(program.grown() == grown);
  CHECK(program.stitches() == 1);
  CHECK(program.bytes_of(joined).size() == 4);
  // Freed and asked for again: the range is there.
  program.packer().release(joined, 1);
  CHECK(program.allocate(4 * kChunk) != kNone);
  CHECK(program.stitches() == 1);
}

TEST_CASE("packing: the end of one chunk and the beginning of another are joined") {
  Program program(small_options());
  const Bytes part = kChunk / 4 * 3;
  std::vector<BlockId> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(program.allocate(part));  // three chunks in all
  CHECK(program.grown() == 3);
  program.packer().release(blocks[1], 1);
  // Three quarters of a chunk, over two of them: it came back without a stitch.
  const BlockId again = program.allocate(part);
  CHECK(program.packer().block(again).offset == part);
  CHECK(program.grown() == 3);
}

TEST_CASE("packing: another stream's bytes are taken only after they were handed over") {
  Program program(small_options());
  const BlockId first = program.allocate(4 * kChunk, 1);
  program.packer().release(first, 7);
  CHECK(program.packer().place_now({.bytes = kChunk, .tag = 2}) == kNone);
  program.packer().hand_over(1, 2, 6);  // an epoch too early
  CHECK(program.packer().place_now({.bytes = kChunk, .tag = 2}) == kNone);
  program.packer().hand_over(1, 2, 7);
  CHECK(program.packer().place_now({.bytes = kChunk, .tag = 2}) != kNone);
  check_tiling(program.packer().extents());
}

TEST_CASE("packing: streams keep apart while all but the largest have little") {
  Program program(small_options());
  const Packer& packer = program.packer();
  CHECK_FALSE(packer.keeps_apart({.bytes = kChunk, .tag = 1}));  // there is nothing yet
  REQUIRE(program.allocate(96 * kChunk, 1) != kNone);
  CHECK(packer.keeps_apart({.bytes = 50 * kChunk, .tag = 1}));  // the largest itself
  CHECK(packer.keeps_apart({.bytes = 10 * kChunk, .tag = 2}));
  CHECK_FALSE(packer.keeps_apart({.bytes = 14 * kChunk, .tag = 2}));
  const BlockId side = program.allocate(8 * kChunk, 2);
  CHECK_FALSE(packer.keeps_apart({.bytes = 8 * kChunk, .tag = 3}));  // all of them together
  program.packer().release(side, 1);
  CHECK_FALSE(packer.keeps_apart({.bytes = 8 * kChunk, .tag = 3}));  // free or not
  CHECK(packer.keeps_apart({.bytes = kChunk, .tag = 1}));
  program.packer().hand_over(2, 1, 1);
  CHECK_FALSE(packer.keeps_apart({.bytes = 8 * kChunk, .tag = 2}));  // it has had its share
  for (const Packer::Run& run : packer.free_runs()) {
    CHECK(program.packer().vacate(run, [] { return Status{}; }).ok());
  }
  CHECK(packer.keeps_apart({.bytes = 8 * kChunk, .tag = 2}));  // which was given back
}

TEST_CASE("packing: chunks that a range in use maps are not given back") {
  Program program(small_options());
  std::vector<BlockId> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(program.allocate(kChunk));
  for (int i = 0; i < 8; i += 2) program.packer().release(blocks[i], 1);
  const BlockId joined = program.allocate(4 * kChunk);
  program.packer().release(joined, 1);
  const BlockId part = program.allocate(3 * kChunk);  // in the same range, whose last chunk is free
  REQUIRE(program.packer().block(part).range != kNone);
  std::uint64_t freed = 0;
  for (const auto& run : program.packer().free_runs()) freed += run.slots;
  CHECK(freed == free_bytes(program.packer().extents()) / kChunk - 1);
  program.packer().release(part, 1);
  freed = 0;
  for (const auto& run : program.packer().free_runs()) {
    for (const RangeId range : program.packer().idle_ranges(run))
      program.packer().drop_range(range);
    CHECK(program.packer().vacate(run, [] { return Status{}; }).ok());
    freed += run.slots;
  }
  CHECK(freed >= 4);
  CHECK(free_bytes(program.packer().extents()) == 0);
  check_tiling(program.packer().extents());
  CHECK(program.allocate(kChunk) != kNone);
}

TEST_CASE("packing: a loop of the same sizes comes to rest") {
  std::mt19937_64 random(5);
  Program program(small_options());
  std::vector<Bytes> sizes(60);
  for (Bytes& size : sizes) size = random_size(random);
  const auto iteration = [&] {
    std::vector<BlockId> live;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      live.push_back(program.allocate(sizes[i]));
      if (i % 3 == 2) {
        program.packer().release(live[i / 2], 1);
        live[i / 2] = kNone;
      }
    }
    for (const BlockId id : live) {
      if (id != kNone) program.packer().release(id, 1);
    }
  };
  for (int i = 0; i < 10; ++i) iteration();
  const std::uint64_t grown = program.grown();
  const int stitches = program.stitches();
  for (int i = 0; i < 20; ++i) iteration();
  CHECK(program.grown() == grown);
  CHECK(program.stitches() == stitches);
}

// A key-value cache that grows by a token: each layer's next tensor is there before the last goes.
void generate(Program& program, Bytes batch, Bytes length) {
  constexpr Bytes kWidth = 1600 * 2;
  std::vector<BlockId> cache;
  for (int layer = 0; layer < 48; ++layer) {
    std::vector<BlockId> inner;
    for (const Bytes part : {3, 1, 1, 4, 4}) {
      inner.push_back(program.allocate(batch * length * kWidth * part));
    }
    for (int i = 0; i < 2; ++i) cache.push_back(program.allocate(batch * length * kWidth));
    REQUIRE(cache.back() != kNone);
    for (const BlockId id : inner) program.packer().release(id, 1);
  }
  for (Bytes step = 1; step <= 16; ++step) {
    const BlockId logits = program.allocate(batch * 50257 * 4);
    for (BlockId& tensor : cache) {
      const BlockId next = program.allocate(batch * (length + step) * kWidth);
      program.packer().release(tensor, 1);
      REQUIRE(next != kNone);
      tensor = next;
    }
    program.packer().release(logits, 1);
  }
  for (const BlockId tensor : cache) program.packer().release(tensor, 1);
}

TEST_CASE("packing: batches of several shapes come to rest, in whatever order they return") {
  std::mt19937_64 random(8);
  constexpr std::uint64_t kSlots = 3510;  // little more than what is live at the peak
  Program program(Options{}, 2 * kSlots);
  // Weights that were converted one by one lie between holes twice their size.
  for (int i = 0; i < 48; ++i) {
    for (const Bytes part : {3, 1, 4, 4}) {
      const BlockId wide = program.allocate(part * 1600 * 6400);
      REQUIRE(program.allocate(part * 1600 * 3200) != kNone);
      if (i % 4 != 3) program.packer().release(wide, 1);
    }
  }
  const std::pair<Bytes, Bytes> shapes[] = {{8, 446}, {16, 517}, {4, 568}, {1, 350}, {16, 249}};
  const auto pass = [&] {
    std::vector<int> order{0, 1, 2, 3, 4};
    std::ranges::shuffle(order, random);
    const int before = program.stitches();
    for (const int i : order) generate(program, shapes[i].first, shapes[i].second);
    return program.stitches() - before;
  };
  for (int i = 0; i < 6; ++i) pass();
  const std::uint64_t grown = program.grown();
  int stitches = 0;
  for (int i = 0; i < 5; ++i) stitches += pass();
  CHECK(program.grown() == grown);
  CHECK(stitches == 0);
}

TEST_CASE("packing: ranges beyond the limit go, the least recently used first") {
  Options options = small_options();
  options.max_ranges = 2;
  Program program(options);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(program.allocate(kChunk));
  for (int i = 0; i < 20; i += 2) program.packer().release(blocks[i], 1);
  std::vector<BlockId> joined;
  for (int i = 0; i < 3; ++i) joined.push_back(program.allocate(3 * kChunk));
  CHECK(program.packer().too_many_ranges());
  CHECK(program.packer().oldest_range() == kNone);  // all in use
  const RangeId first = program.packer().block(joined[0]).range;
  for (const BlockId id : joined) program.packer().release(id, 1);
  CHECK(program.packer().oldest_range() == first);
  program.packer().drop_range(first);
  CHECK_FALSE(program.packer().too_many_ranges());
}

}  // namespace
}  // namespace penstock::testing
