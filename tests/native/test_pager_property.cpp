// SPDX-License-Identifier: Apache-2.0
// The contract, for programs at random that declare their uses: a read that no use covers is right
// or faults, a use finds what was written last, and so does the host after a flush, whatever is
// resized, forgotten, created or planned meanwhile.
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/paging/pager.hpp"
#include "property_bench.hpp"

namespace penstock::testing::property {
namespace {

using engine::Evicted;
using engine::UseId;

constexpr Bytes kPagesOfUse = 5;
constexpr std::size_t kNested = 2;

struct Layer {
  Block block;
  std::byte* host = nullptr;
  UseId reads = -1, writes = -1;
  bool scratch = false;    // is forgotten now and then, and never reached unseen
  bool forgotten = false;  // until it is written
};

// The device and the pager; ranges of layers belong to one thread or, read only, to all.
class Model {
 public:
  Model(std::uint64_t seed, Evicted evicted, Tally& of) : tally(of), random(seed) {
    threads = random.one_in(2) ? 1 : 2;
    page = (8 * kKiB) << random.below(3);
    smallest = kPagesOfUse * kNested * static_cast<Bytes>(threads) + 2;
    slots = smallest + random.below(12);
    driver::HostDriverOptions host{.capacity = 64 * kMiB, .granularity = page};
    host.seed = seed;
    host.max_delay_us = static_cast<std::uint32_t>(std::vector{0, 0, 10, 60}[random.below(4)]);
    device = std::move(driver::open_host_driver(host)).value();
    engine::PagerOptions options;
    options.budget = slots * page;
    options.chunk_bytes = page;
    options.look_ahead_bytes = random.below(5) * page;
    options.max_copy_bytes = random.between(1, 4) * page;
    options.evicted = evicted;
    auto made = engine::Pager::create(*device, options);
    if (tally.ok(made.status(), "create")) pager = std::move(made).value();
  }
  ~Model() {
    pager.reset();
    for (const Stream stream : streams_) (void)device->destroy_stream(stream);
    const driver::LiveCounts live = device->live();
    const std::int64_t left = live.ranges + live.chunks + live.mappings + live.host_allocations +
                              live.streams + live.events;
    if (left != 0) tally.fail(std::to_string(left) + " objects of the driver are left behind");
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  Stream make_stream() {
    auto made = device->create_stream();
    if (!tally.ok(made.status(), "create_stream")) return {};
    streams_.push_back(made.value());
    return made.value();
  }

  // A range of blocks side by side, which share pages at their borders.
  std::vector<std::unique_ptr<Layer>> make_layers(Random& draw, std::size_t count, bool shared) {
    std::vector<std::unique_ptr<Layer>> layers;
    std::vector<Bytes> sizes(count);
    Bytes bytes = 0;
    for (Bytes& size : sizes) bytes += size = align_up(draw.between(8, 7 * page / 2), 8);
    auto index = pager->create_range(bytes, engine::RangeKind::kPaged);
    if (!tally.ok(index.status(), "create_range")) return layers;
    const engine::Range range = pager->range(index.value());
    Bytes offset = 0;
    for (const Bytes size : sizes) {
      auto layer = std::make_unique<Layer>();
      layer->block.address = range.address + offset;
      layer->block.shared = shared;
      layer->block.shadow = std::make_shared<std::vector<Word>>(size / sizeof(Word));
      layer->scratch = !shared && draw.one_in(4);
      layer->host = range.host + offset;
      for (Word& word : *layer->block.shadow) word = draw.bits();
      std::memcpy(layer->host, layer->block.shadow->data(), size);
      for (const bool written : {false, true}) {
        auto use = pager->define_use({{layer->block.address, size, written}});
        if (!tally.ok(use.status(), "define_use")) return layers;
        (written ? layer->writes : layer->reads) = use.value();
      }
      layers.push_back(std::move(layer));
      offset += size;
    }
    return layers;
  }

  void resize(Bytes pages) {
    const std::lock_guard lock(resizing_);
    const Bytes before = pager->stats().budget;
    const Status status = pager->resize(pages * page);
    if (status.code() == Code::kOutOfMemory) {
      if (pager->stats().budget != before)
        tally.fail("a resize was refused and changed the budget");
    } else {
      tally.ok(status, "resize");
    }
  }

  Tally& tally;
  Random random;
  int threads = 1;
  Bytes page = 0, smallest = 0, slots = 0;
  bool may_be_wrong = false;
  std::unique_ptr<driver::HostDriver> device;
  std::unique_ptr<engine::Pager> pager;
  std::vector<std::unique_ptr<Layer>> weights;  // of all threads, and only read

 private:
  std::vector<Stream> streams_;
  std::mutex resizing_;
};

class Script {
 public:
  Script(Model& model, std::uint64_t seed, bool leads)
      : model_(model), random_(seed), leads_(leads), stream_(model.make_stream()) {
    own_ = model.make_layers(random_, random_.between(4, 8), false);
  }

  void run(int phases) {
    for (int i = 0; i < phases && !failed(); ++i) {
      if (random_.one_in(2)) {
        sweeps(random_.one_in(2));
      } else {
        for (auto steps = random_.between(20, 60); steps > 0 && !failed(); --steps) step();
      }
    }
    for (const auto& layer : own_) {
      if (!layer->forgotten && !failed()) flush(*layer);
    }
    model_.tally.ok(model_.device->synchronize(stream_), "synchronize");
  }

 private:
  [[nodiscard]] bool failed() const { return model_.tally.failed(); }
  Layer& own() { return *own_[random_.below(own_.size())]; }
  Layer& weight() { return *model_.weights[random_.below(model_.weights.size())]; }
  Layer& any() { return random_.one_in(2) ? own() : weight(); }

  void begin(UseId use) { model_.tally.ok(model_.pager->begin(use, stream_), "begin"); }
  void end(UseId use) {
    if (!failed()) model_.tally.ok(model_.pager->end(use, stream_), "end");
  }

  // A kernel that reads one layer, and writes one, and perhaps another that no use covers.
  void kernel(Layer* read, Layer* written, Layer* unseen, std::uint32_t lasts_us = 0) {
    if (failed()) return;
    Block in, out, hidden;
    if (read != nullptr) in = read->block;
    if (written != nullptr) out = written->block;
    if (unseen != nullptr) hidden = unseen->block;
    const Hidden how{.seed = random_.bits(),
                     .accesses = random_.between(8, 40),
                     .lingers = random_.one_in(3),
                     .may_be_wrong = model_.may_be_wrong};
    model_.tally.ok(
        model_.device->launch(
            stream_,
            [in, out, hidden, how, lasts_us, value = random_.bits(), &tally = model_.tally] {
              if (lasts_us > 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(lasts_us));
              }
              if (in.shadow) check_words(in, tally);
              if (hidden.shadow) reach(hidden, how, tally);
              if (out.shadow) write_words(out, value);
            }),
        "launch");
  }

  Layer* unseen() {
    Layer& layer = any();
    return layer.scratch || random_.one_in(3) ? nullptr : &layer;
  }

  // A layer's use, with another inside it at times.
  void use(Layer& layer, bool writes, std::size_t depth = 1) {
    if (failed()) return;
    writes = layer.forgotten || (writes && !layer.block.shared);
    const UseId id = writes ? layer.writes : layer.reads;
    begin(id);
    kernel(layer.forgotten ? nullptr : &layer, writes ? &layer : nullptr, unseen());
    if (writes) layer.forgotten = false;  // of a thread's own: weights are shared, and only read
    if (random_.one_in(16)) resize();
    if (depth < kNested && random_.one_in(3)) {
      use(any(), random_.one_in(2), depth + 1);
      kernel(&layer, nullptr, nullptr);
    }
    end(id);
  }

  void iteration() {
    if (leads_ && !failed()) model_.tally.ok(model_.pager->iteration(), "iteration");
  }

  // All layers in turn, there alone or back as well; one kernel reaches the same unseen every time.
  void sweeps(bool back) {
    Layer* reached = unseen();
    const std::size_t at = random_.below(model_.weights.size());
    const bool writes = random_.one_in(2);
    for (auto round = random_.between(2, 6); round > 0 && !failed(); --round) {
      iteration();
      const std::size_t count = model_.weights.size();
      for (std::size_t i = 0; i < (back ? 2 * count : count); ++i) {
        const std::size_t which = i < count ? i : 2 * count - 1 - i;
        Layer& layer = *model_.weights[which];
        begin(layer.reads);
        kernel(&layer, nullptr, which == at ? reached : nullptr);
        end(layer.reads);
        if (which % 3 == 0) use(*own_[which % own_.size()], writes, kNested);
      }
      if (random_.one_in(2)) hold_back();
      if (random_.one_in(6)) resize();
    }
  }

  void hold_back() {
    kernel(nullptr, nullptr, nullptr, static_cast<std::uint32_t>(random_.between(50, 1500)));
  }
  // To less than can be, too: what is refused changes nothing.
  void resize() {
    if (model_.threads == 1 && random_.one_in(3))
      model_.resize(random_.between(1, model_.smallest));
    model_.resize(random_.between(model_.smallest, model_.slots + 16));
  }

  void step() {
    switch (random_.below(16)) {
      case 0:
        hold_back();
        break;
      case 1:
        resize();
        break;
      case 2:
        iteration();
        break;
      case 3:
        forget();
        break;
      case 4:
        grow();
        break;
      case 5: {
        const Block& block = any().block;
        model_.tally.ok(model_.pager->fetch(block.address, block.bytes()), "fetch");
        break;
      }
      case 6:
        if (Layer& layer = own(); !layer.forgotten) flush(layer);
        break;
      case 7:
        model_.tally.ok(model_.pager->cool(any().block.address, 1), "cool");
        break;
      case 8:
        kernel(nullptr, nullptr, unseen());
        break;
      default:
        use(any(), random_.one_in(2));
    }
  }

  // The host sees what was written by all uses that have ended.
  void flush(Layer& layer) {
    const Block& block = layer.block;
    if (!model_.tally.ok(model_.pager->flush(block.address, block.bytes()), "flush")) return;
    model_.tally.ok(model_.device->synchronize(stream_), "synchronize");
    if (std::memcmp(layer.host, block.shadow->data(), block.bytes()) != 0) {
      model_.tally.fail("the host does not have what was written before a flush");
    }
  }

  void forget() {
    Layer& layer = own();
    if (!layer.scratch) return;
    const Block& block = layer.block;
    model_.tally.ok(model_.pager->forget(block.address, block.bytes()), "forget");
    layer.forgotten = true;
  }

  void grow() {
    if (own_.size() > 12 || !random_.one_in(4)) return;
    for (auto& layer : model_.make_layers(random_, 2, false)) own_.push_back(std::move(layer));
  }

  Model& model_;
  Random random_;
  const bool leads_;  // says when an iteration begins
  const Stream stream_;
  std::vector<std::unique_ptr<Layer>> own_;
};

void run_model(std::uint64_t seed, Evicted evicted, Tally& tally) {
  Model model(seed, evicted, tally);
  if (tally.failed()) return;
  model.may_be_wrong = evicted == Evicted::kMapped;
  Random& random = model.random;
  model.weights = model.make_layers(random, model.slots / 3 + random.between(2, 12), true);
  std::vector<std::unique_ptr<Script>> scripts;
  for (int i = 0; i < model.threads; ++i) {
    scripts.push_back(std::make_unique<Script>(model, random.bits(), i == 0));
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < scripts.size(); ++i) {
    threads.emplace_back([&script = *scripts[i]] { script.run(6); });
  }
  scripts[0]->run(6);
  for (std::thread& thread : threads) thread.join();
}

void run(const char* test, std::int64_t accesses, Evicted evicted, Tally& total) {
  run_seeds(
      test, accesses, [&](std::uint64_t seed, Tally& tally) { run_model(seed, evicted, tally); },
      total);
  CHECK(total.right > 0);
}

}  // namespace

TEST_CASE("property: uses at random under normal: hidden reads are right or fault") {
  Tally total;
  run("property: uses at random under normal*", 20000, Evicted::kUnmapped, total);
  CHECK(total.faults > 0);
}

TEST_CASE("property: uses at random under fast do read other data unseen") {
  Tally total;
  run("property: uses at random under fast*", 5000, Evicted::kMapped, total);
  CHECK(total.wrong > 0);
}

}  // namespace penstock::testing::property
