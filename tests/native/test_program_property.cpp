// SPDX-License-Identifier: Apache-2.0
// The contract, for programs at random whose work is announced: an access that nobody named is
// right or faults, and whatever is announced is right, wherever the host is and whatever else goes
// on meanwhile.  With the setting that gives the contract up the same programs do read other data,
// which shows that they would find it.
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "program_world.hpp"

namespace penstock::testing::property {
namespace {

using engine::Evicted;

// What one thread does: phases that a program has, some of them long enough to be learned, and
// between them steps of every kind.
class Script {
 public:
  explicit Script(Actor& actor) : actor_(actor), random_(actor.random), world_(actor.world) {}

  void run(int phases) {
    for (int i = 0; i < phases && !world_.tally.failed(); ++i) {
      switch (random_.below(7)) {
        case 0:
          sweeps(false);
          break;
        case 1:
          sweeps(true);
          break;
        case 2:
          generate();
          break;
        case 3:
          besieged();
          break;
        case 4:
          outlived();
          break;
        default:
          steps(static_cast<int>(random_.between(40, 120)));
      }
    }
    finish();
  }

 private:
  [[nodiscard]] bool failed() const { return world_.tally.failed(); }
  Bytes size() { return random_.between(8, 5 * world_.page / 2); }
  Block& own() { return *blocks_[random_.below(blocks_.size())]; }
  Block& weight() { return *world_.weights[random_.below(world_.weights.size())]; }
  Block& any() { return random_.one_in(2) ? own() : weight(); }

  // One more kernel of which nobody says that it reaches a block.
  void reach(Kernel kernel, Stream stream) {
    const bool of_own = !blocks_.empty() && random_.one_in(2);
    kernel.unseen = of_own ? &own() : &weight();
    kernel.writes_unseen = of_own && random_.one_in(2);
    kernel.opaque = random_.one_in(4);
    if (random_.one_in(8)) kernel.function = 1000 + random_.below(1000);
    for (const Block* block : kernel.writes) {
      if (block == kernel.unseen) return;
    }
    actor_.launch(stream, kernel);
  }

  // The host runs ahead of the device from here on.
  void hold_back(Stream stream) {
    actor_.launch(stream, {.reads = {},
                           .writes = {},
                           .announced = random_.one_in(2),
                           .lasts_us = static_cast<std::uint32_t>(random_.between(50, 1500))});
  }

  // Layers in turn, each of which reads its weight; there and back, as in training, or there alone.
  // One of them reads another's weight as well, every time.
  void sweeps(bool back) {
    const Stream stream = actor_.any_stream();
    const std::size_t layers = world_.weights.size();
    const std::size_t at = random_.below(layers);
    const std::size_t unseen = random_.below(layers);
    const std::uint64_t function = 10 + random_.below(50);
    const auto rounds = random_.between(2, 8);
    Block hidden = actor_.make(world_.page / 2, stream);
    for (std::uint64_t round = 0; round < rounds && !failed(); ++round) {
      for (std::size_t step = 0; step < (back ? 2 * layers : layers); ++step) {
        const std::size_t layer = step < layers ? step : 2 * layers - 1 - step;
        Block next = actor_.make(world_.page / 2, stream);
        const bool here = layer == at;
        actor_.launch(stream, {.reads = {&hidden, world_.weights[layer].get()},
                               .writes = {&next},
                               .unseen = here ? world_.weights[unseen].get() : nullptr,
                               .function = here ? function : 1});
        for (int i = 0; i < 2; ++i) {
          actor_.launch(stream, {.reads = {&next}, .writes = {&next}, .function = 2});
        }
        actor_.drop(hidden);
        hidden = next;
      }
      if (random_.one_in(3)) hold_back(stream);
      if (random_.one_in(3)) actor_.synchronize();
      if (random_.one_in(6)) resize();
    }
    actor_.drop(hidden);
  }

  // A cache that is copied to a longer place for every token.
  void generate() {
    const Stream stream = actor_.any_stream();
    Bytes cached = 64;
    Block cache = actor_.make(cached, stream);
    const auto tokens = random_.between(3, 12);
    for (std::uint64_t token = 0; token < tokens && !failed(); ++token) {
      for (const auto& weight : world_.weights) {
        if (random_.one_in(4)) reach({.reads = {weight.get()}, .writes = {&cache}}, stream);
        actor_.launch(stream, {.reads = {weight.get(), &cache}, .writes = {}, .function = 3});
      }
      cached += random_.below(world_.page / 4);
      Block longer = actor_.make(cached, stream);
      actor_.launch(stream, {.reads = {&cache}, .writes = {&longer}, .function = 4});
      actor_.drop(cache);
      cache = longer;
      if (random_.one_in(4)) hold_back(stream);
    }
    actor_.drop(cache);
  }

  // What was touched before leaves: weights for so many pages come in its place.
  void crowd(Stream stream, Bytes pages) {
    std::size_t next = random_.below(world_.weights.size());
    for (Bytes bytes = 0; bytes < pages * world_.page && !failed(); ++next) {
      Block& weight = *world_.weights[next % world_.weights.size()];
      actor_.launch(stream, {.reads = {&weight}, .writes = {}, .function = 5});
      bytes += weight.bytes();
    }
  }
  std::vector<Block> make_some(Stream stream) {
    std::vector<Block> made;
    for (auto i = random_.between(1, 3); i > 0; --i) {
      made.push_back(actor_.make(random_.between(world_.page, 5 * world_.page / 2), stream));
    }
    return made;
  }
  void drop_all(std::vector<Block>& blocks) {
    for (Block& block : blocks) {
      if (!failed()) actor_.drop(block);
    }
  }

  // Pages leave while work is under way that writes them and of which nobody said that it does.
  void besieged() {
    const Stream stream = actor_.any_stream(), other = actor_.any_stream();
    Block block = actor_.make(random_.between(world_.page, 5 * world_.page / 2), stream);
    for (auto rounds = random_.between(1, 3); rounds > 0 && !failed(); --rounds) {
      crowd(stream, random_.between(world_.slots / 2, world_.slots));
      const auto over = std::make_shared<std::atomic<bool>>(false);
      actor_.launch(stream, {.reads = {},
                             .writes = {},
                             .unseen = &block,
                             .writes_unseen = true,
                             .function = 6,
                             .until = over});
      crowd(other, world_.slots / 2);
      std::vector<Block> others = make_some(other);
      *over = true;
      drop_all(others);
      actor_.launch(stream, {.reads = {&block}, .writes = {}, .function = 7});
    }
    if (!failed()) actor_.drop(block);
  }

  // A block is freed, and its address given out again, before work has begun that was given while
  // it lived and reaches it; meanwhile its pages make room for others and come back.
  void outlived() {
    const Stream stream = actor_.any_stream(), other = actor_.any_stream();
    const Bytes bytes = random_.between(2 * world_.page, 5 * world_.page / 2);
    for (auto rounds = random_.between(1, 3); rounds > 0 && !failed(); --rounds) {
      Block block = actor_.make(bytes, stream);
      crowd(stream, world_.slots / 2);
      const auto over = std::make_shared<std::atomic<bool>>(false);
      actor_.launch(stream,
                    {.reads = {}, .writes = {}, .unseen = &block, .function = 8, .until = over});
      if (!failed()) actor_.drop(block);
      std::vector<Block> others = make_some(other);
      Block next = actor_.make(bytes, stream);
      *over = true;
      if (!failed()) actor_.drop(next);
      drop_all(others);
    }
  }

  void steps(int count) {
    for (int i = 0; i < count && !failed(); ++i) step();
  }

  void step() {
    const Stream stream = actor_.any_stream();
    if (blocks_.size() < 4 || (blocks_.size() < 14 && random_.one_in(8))) {
      blocks_.push_back(std::make_shared<Block>(actor_.make(size(), stream)));
      return;
    }
    switch (random_.below(16)) {
      case 0:
        drop_one();
        break;
      case 1:
        hold_back(stream);
        break;
      case 2:
        graph();
        break;
      case 3:
        if (random_.one_in(4)) resize();
        break;
      case 4:
        if (random_.one_in(4)) {
          world_.tally.ok(world_.program->allocator().empty_cache(), "empty_cache");
        }
        break;
      case 5:
        through_table(stream);
        break;
      case 6:
      case 7:
      case 8:
      case 9:
        reach({.reads = {&any()}, .writes = {&own()}}, stream);
        break;
      case 10:
        reach({.reads = {}, .writes = {}}, stream);
        break;
      default:
        actor_.launch(stream, {.reads = {&any(), &any()}, .writes = {&own()}});
    }
  }

  void drop_one() {
    std::shared_ptr<Block>& block = blocks_[random_.below(blocks_.size())];
    // What a kernel reaches that was given before is there, or the kernel faults.
    if (random_.one_in(2)) {
      actor_.launch(block->last, {.reads = {}, .writes = {}, .unseen = block.get()});
    }
    actor_.drop(*block);
    block = std::move(blocks_.back());
    blocks_.pop_back();
  }

  // To less than can be, too: what is refused changes nothing.
  void resize() {
    if (world_.threads == 1 && random_.one_in(3))
      world_.resize(random_.between(1, world_.smallest));
    world_.resize(random_.between(world_.smallest, world_.slots + 16));
  }

  void graph() {
    const std::size_t graphs = actor_.graphs();
    if (graphs > 0 && (graphs == kMostGraphs || !random_.one_in(3))) {
      random_.one_in(4) ? actor_.end_graph() : actor_.replay();
      return;
    }
    const std::shared_ptr<Block> block = blocks_[random_.below(blocks_.size())];
    const std::optional<Stream> stream = actor_.own_stream();
    driver::HostGraph captured;
    if (stream && world_.captures && random_.one_in(2)) {
      captured = actor_.capture(*block, *stream, [&] { beside(actor_.other_than(*stream)); });
    }
    if (!failed()) actor_.begin_graph(block, captured);
  }

  // Work that needs nothing of any other stream.
  void beside(Stream stream) {
    Block block = actor_.make(size(), stream);
    for (auto i = random_.between(1, 12); i > 0; --i) {
      actor_.launch(stream, {.reads = {&weight(), &weight()}, .writes = {&block}});
    }
    actor_.drop(block);
  }

  // A kernel that is given a table of addresses, or one of such tables.
  void through_table(Stream stream) {
    Block table = actor_.make(64, stream);
    Block outer = actor_.make(64, stream);
    Block& reached = own();
    bring(stream, table.address, reached.address);
    bring(stream, outer.address, table.address);
    actor_.launch(
        stream,
        {.reads = {random_.one_in(2) ? &table : &outer}, .writes = {}, .through = &reached});
    actor_.drop(table);
    actor_.drop(outer);
  }
  // A copy of it from the host.
  void bring(Stream stream, Addr at, Addr address) {
    const engine::TouchedAddress to{at, sizeof(address), true};
    const engine::HeldAddress held{at, address};
    if (failed() || !world_.pager().paging()) return;
    if (world_.tally.ok(world_.program->announce(stream, std::span(&to, 1), false, 0,
                                                 engine::WorkKind::kCopy, std::span(&held, 1)),
                        "announce")) {
      world_.program->given(stream);
    }
  }

  void finish() {
    while (!failed() && actor_.graphs() > 0) actor_.end_graph();
    for (const auto& block : blocks_) {
      if (failed()) return;
      actor_.launch(block->last, {.reads = {block.get()}, .writes = {}});
      actor_.drop(*block);
    }
    actor_.synchronize();
  }

  Actor& actor_;
  Random& random_;
  World& world_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

// Weights for more than the budget, so that paging has begun before threads run.
void make_weights(World& world, Actor& actor) {
  Bytes beyond = actor.random.between(2, world.slots) * world.page;
  while ((!world.pager().paging() || beyond > 0) && !world.tally.failed()) {
    const Bytes bytes = actor.random.between(world.page / 2, 5 * world.page / 2);
    world.weights.push_back(std::make_unique<Block>(actor.make(bytes, actor.any_stream())));
    world.weights.back()->shared = true;
    if (world.pager().paging()) beyond -= std::min(beyond, bytes);
  }
  actor.synchronize();
}

void run_program(const WorldOptions& options, Tally& tally) {
  World world(options, tally);
  if (tally.failed()) return;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < world.threads; ++i) {
    actors.push_back(std::make_unique<Actor>(world, static_cast<std::uint64_t>(i)));
  }
  make_weights(world, *actors[0]);
  for (const auto& weight : world.weights) weight->home.reset();  // may be gone when they go
  const auto act = [](Actor& actor) { Script(actor).run(4); };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < actors.size(); ++i) threads.emplace_back(act, std::ref(*actors[i]));
  act(*actors[0]);
  for (std::thread& thread : threads) thread.join();
  for (const auto& actor : actors) actor->synchronize();
  for (const auto& weight : world.weights) {
    weight->last = actors[0]->any_stream();
    actors[0]->launch(weight->last, {.reads = {weight.get()}, .writes = {}});
    actors[0]->drop(*weight);
  }
  actors[0]->synchronize();
}

void run(const char* test, std::int64_t accesses, Evicted evicted, Tally& total) {
  run_seeds(
      test, accesses,
      [&](std::uint64_t seed, Tally& tally) {
        run_program({.seed = seed, .evicted = evicted, .may_be_wrong = evicted == Evicted::kMapped},
                    tally);
      },
      total);
  CHECK(total.right > 0);
}

}  // namespace

TEST_CASE("property: programs at random under normal: hidden accesses are right or fault") {
  Tally total;
  run("property: programs at random under normal*", 20000, Evicted::kUnmapped, total);
  CHECK(total.faults > 0);
}

TEST_CASE("property: programs at random under strict: hidden accesses are right") {
  Tally total;
  run("property: programs at random under strict*", 10000, Evicted::kOnHost, total);
  CHECK(total.faults == 0);
}

TEST_CASE("property: programs at random under fast do read other data unseen") {
  Tally total;
  run("property: programs at random under fast*", 5000, Evicted::kMapped, total);
  CHECK(total.wrong > 0);
}

}  // namespace penstock::testing::property
