// SPDX-License-Identifier: Apache-2.0
// A program at random on the emulated GPU: threads that allocate, free, launch, pin and resize,
// some ahead of the device, and kernels that reach blocks which nobody named.  Here is what such a
// program consists of; test_program_property.cpp says in which order it does what.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "process/program.hpp"
#include "property_bench.hpp"

namespace penstock::testing::property {

// A kernel touches a few blocks of so many pages at most, borders included.
inline constexpr Bytes kPagesOfBlock = 4;
inline constexpr Bytes kPagesOfKernel = 3 * kPagesOfBlock;
inline constexpr std::size_t kMostGraphs = 2;  // of a thread, at a time

struct WorldOptions {
  std::uint64_t seed = 1;
  engine::Evicted evicted = engine::Evicted::kUnmapped;
  bool may_be_wrong = false;  // hidden accesses
};

class World {
 public:
  World(const WorldOptions& given, Tally& of) : options(given), tally(of), random_(given.seed) {
    threads = random_.one_in(2) ? 1 : static_cast<int>(random_.between(2, 3));
    page = (8 * kKiB) << random_.below(3);
    // What the threads' work and pins hold at most, and a little.
    const Bytes most = kPagesOfKernel + kMostGraphs * kPagesOfBlock;
    smallest = most * static_cast<Bytes>(threads) + 4;
    slots = smallest + random_.below(12);
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = page};
    host.seed = given.seed;
    host.reuse_handles = random_.one_in(2);
    host.max_delay_us = static_cast<std::uint32_t>(std::vector{0, 0, 10, 60}[random_.below(4)]);
    device = std::move(driver::open_host_driver(host)).value();
    auto made = engine::Program::create(*device, {.budget = slots * page,
                                                  .page_bytes = page,
                                                  .evicted = given.evicted,
                                                  .start_paging = [] {},
                                                  .widened = {}});
    if (tally.ok(made.status(), "create")) program = std::move(made).value();
  }
  ~World() { close(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // When nothing uses it any more.
  void close() {
    if (!device) return;
    program.reset();
    for (const Stream stream : streams_) (void)device->destroy_stream(stream);
    const driver::LiveCounts live = device->live();
    const std::int64_t left = live.ranges + live.chunks + live.mappings + live.host_allocations +
                              live.streams + live.events;
    if (left != 0) tally.fail(std::to_string(left) + " objects of the driver are left behind");
    if (device->dead_uses() != 0) tally.fail("a stream was named that had been destroyed");
    device.reset();
  }

  Stream make_stream() {
    auto made = device->create_stream();
    if (!tally.ok(made.status(), "create_stream")) return {};
    const std::lock_guard lock(streams_mutex_);
    streams_.push_back(made.value());
    return made.value();
  }
  // As the proxy does for a program: the engine hears of it first.
  void destroy_stream(Stream stream) {
    tally.ok(program->stream_gone(stream), "stream_gone");
    {
      const std::lock_guard lock(streams_mutex_);
      std::erase(streams_, stream);
    }
    tally.ok(device->destroy_stream(stream), "destroy_stream");
  }
  [[nodiscard]] engine::Pager& pager() { return program->pager(); }

  // To so many pages.  What is refused changes nothing.
  void resize(Bytes pages) {
    const std::lock_guard lock(resizing_);
    const Bytes before = pager().stats().budget;
    const Status status = pager().resize(pages * page);
    if (status.code() == Code::kOutOfMemory) {
      if (pager().stats().budget != before)
        tally.fail("a resize was refused and changed the budget");
    } else {
      tally.ok(status, "resize");
    }
  }

  const WorldOptions options;
  Tally& tally;
  // Pages come and go while the device has nothing to do, which nobody can wait for in a capture.
  const bool captures = options.evicted != engine::Evicted::kOnHost;
  int threads = 1;
  Bytes page = 0, smallest = 0, slots = 0;
  std::unique_ptr<driver::HostDriver> device;
  std::unique_ptr<engine::Program> program;
  std::vector<std::unique_ptr<Block>> weights;  // of all threads; never written once they run

 private:
  Random random_;
  std::vector<Stream> streams_;
  std::mutex streams_mutex_, resizing_;
};

struct Kernel {
  std::vector<Block*> reads, writes;  // announced
  Block* through = nullptr;           // read by way of a table of addresses that is among `reads`
  Block* unseen = nullptr;            // reached and not announced
  bool writes_unseen = false;
  bool announced = true;
  bool opaque = false;
  std::uint64_t function = 1;
  std::uint32_t lasts_us = 0;  // before it does anything
  // It begins only when this is so, or after kLongest; with `writes_unseen` it writes until then.
  std::shared_ptr<const std::atomic<bool>> until = nullptr;
};

// One thread of the program, with its streams and blocks.
class Actor {
 public:
  Actor(World& of, std::uint64_t number) : world(of), random(of.options.seed * 8 + number) {
    for (auto i = random.between(1, 3); i > 0; --i) streams_.push_back(world.make_stream());
    if (random.one_in(3)) streams_.push_back(driver::kPerThreadStream);
  }
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  Stream any_stream() { return streams_[random.below(streams_.size())]; }
  // One that a program can capture and destroy; nothing: there is none beside it.
  std::optional<Stream> own_stream() {
    if (streams_.size() < 2) return {};
    const Stream stream = any_stream();
    return stream == driver::kPerThreadStream ? std::nullopt : std::optional(stream);
  }
  Stream other_than(Stream stream) {
    Stream other = any_stream();
    while (other == stream) other = any_stream();
    return other;
  }
  void synchronize() {
    for (const Stream stream : streams_) {
      world.tally.ok(world.device->synchronize(stream), "synchronize");
    }
  }

  // Written at once, as a program does with what it allocates.
  Block make(Bytes bytes, Stream stream) {
    Block block{.home = stream, .last = stream, .shadow = {}};
    block.shadow = std::make_shared<std::vector<Word>>(std::max<Bytes>(bytes / sizeof(Word), 1));
    auto got = world.program->allocator().allocate(block.bytes(), stream);
    if (!world.tally.ok(got.status(), "allocate")) return block;
    block.address = got.value();
    launch(stream, {.reads = {}, .writes = {&block}});
    return block;
  }

  void drop(Block& block) {
    if (block.home) {
      order(block.last, *block.home);
    } else {
      world.tally.ok(world.device->synchronize(block.last), "synchronize");
    }
    world.tally.ok(world.program->allocator().free(block.address), "free");
  }

  // Another comes in its place.  `blocks` are those that its work may have touched.
  void replace(Stream stream, std::span<const std::shared_ptr<Block>> blocks) {
    for (const auto& block : blocks) {
      if (block->last == stream) take(*block, other_than(stream));
      if (block->home == stream) block->home.reset();
    }
    for (const Graph& graph : graphs_) {
      if (graph.block->last == stream) take(*graph.block, other_than(stream));
    }
    world.destroy_stream(stream);
    std::replace(streams_.begin(), streams_.end(), stream, world.make_stream());
  }

  void launch(Stream stream, const Kernel& kernel) {
    if (world.tally.failed()) return;
    std::vector<engine::TouchedAddress> touched;
    std::vector<Block> in, out;
    for (Block* block : kernel.reads) {
      take(*block, stream);
      // Somewhere inside, as kernels' parameters may be; the sources of copies are only read.
      touched.push_back({block->address + 4, 0, random.one_in(2)});
      in.push_back(*block);
    }
    for (Block* block : kernel.writes) {
      take(*block, stream);
      touched.push_back({block->address, 0, true});
      out.push_back(*block);
    }
    if (kernel.through != nullptr) {
      take(*kernel.through, stream);
      in.push_back(*kernel.through);
    }
    Block unseen;
    Hidden how;
    if (kernel.unseen != nullptr) {
      take(*kernel.unseen, stream);
      unseen = *kernel.unseen;
      how = {.seed = random.bits(),
             .accesses = random.between(8, 40),
             .until = kernel.writes_unseen ? kernel.until.get() : nullptr,
             .writes = kernel.writes_unseen && !world.options.may_be_wrong,
             .lingers = random.one_in(3),
             .may_be_wrong = world.options.may_be_wrong};
    }
    const bool announced = kernel.announced && world.pager().paging();
    if (announced &&
        !world.tally.ok(world.program->announce(stream, touched, kernel.opaque, kernel.function),
                        "announce")) {
      return;
    }
    world.tally.ok(
        world.device->launch(stream,
                             [in, out, unseen, how, lasts = kernel.lasts_us, until = kernel.until,
                              value = random.bits(), &tally = world.tally] {
                               if (until && how.until == nullptr) wait_for(*until);
                               if (lasts > 0) {
                                 std::this_thread::sleep_for(std::chrono::microseconds(lasts));
                               }
                               for (const Block& block : in) check_words(block, tally);
                               if (unseen.shadow) reach(unseen, how, tally);
                               for (const Block& block : out) write_words(block, value);
                             }),
        "launch");
    if (announced) world.program->given(stream);
  }

  // A graph of one kernel that adds to a block, captured while `meanwhile` gives other streams
  // work.
  driver::HostGraph capture(Block& block, Stream stream, const std::function<void()>& meanwhile) {
    driver::HostDriver& device = *world.device;
    take(block, stream);
    if (!world.tally.ok(device.begin_capture(stream), "begin_capture")) return {};
    world.tally.ok(device.launch(stream,
                                 [block, value = random.bits(), &tally = world.tally] {
                                   check_words(block, tally);
                                   write_words(block, value);
                                 }),
                   "launch");
    meanwhile();
    auto captured = device.end_capture(stream);
    if (!world.tally.ok(captured.status(), "end_capture")) return {};
    return std::move(captured).value();
  }

  // It holds the block until it ends, whether that is freed or not: what it touches need not be
  // named.
  void begin_graph(std::shared_ptr<Block> block, driver::HostGraph captured) {
    auto pin = world.program->pin(block->address);
    if (!world.tally.ok(pin.status(), "pin")) return;
    graphs_.push_back({std::move(block), pin.value(), std::move(captured)});
  }
  void replay() {
    const Graph& graph = graphs_[random.below(graphs_.size())];
    Block* const block = graph.block.get();
    if (graph.captured != nullptr) {
      launch_graph(graph);
      return;
    }
    const bool writes = random.one_in(2);
    launch(block->last, {.reads = {block},
                         .writes = writes ? std::vector{block} : std::vector<Block*>{},
                         .announced = random.one_in(2),
                         .function = 0});
  }
  void end_graph() {
    const std::size_t which = random.below(graphs_.size());
    world.tally.ok(world.device->synchronize(graphs_[which].block->last), "synchronize");
    world.program->unpin(graphs_[which].pin);
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  [[nodiscard]] std::size_t graphs() const { return graphs_.size(); }

  World& world;
  Random random;

 private:
  struct Graph {
    std::shared_ptr<Block> block;
    engine::Pin pin;
    driver::HostGraph captured;  // null: its launches are kernels like others
  };

  void launch_graph(const Graph& graph) {
    const Stream stream = graph.block->last;
    const engine::TouchedAddress touched{graph.block->address, 0, true};
    const bool announced = random.one_in(2) && world.pager().paging();
    if (announced) {
      const Status status = world.program->announce(stream, std::span(&touched, 1), false, 0,
                                                    engine::WorkKind::kGraph);
      if (!world.tally.ok(status, "announce")) return;
    }
    world.tally.ok(world.device->launch_graph(stream, graph.captured), "launch_graph");
    if (announced) world.program->given(stream);
  }

  // Work on `stream` comes after all that touched the block so far.
  void take(Block& block, Stream stream) {
    if (block.shared) return;
    order(block.last, stream);
    block.last = stream;
  }

  void order(Stream before, Stream after) {
    if (before == after) return;
    driver::HostDriver& device = *world.device;
    auto event = device.create_event(false);
    if (!world.tally.ok(event.status(), "create_event")) return;
    world.tally.ok(device.record(event.value(), before), "record");
    world.tally.ok(device.wait(after, event.value()), "wait");
    world.tally.ok(device.destroy_event(event.value()), "destroy_event");
  }

  std::vector<Stream> streams_;
  std::vector<Graph> graphs_;
};

}  // namespace penstock::testing::property
