// SPDX-License-Identifier: Apache-2.0
// A short run of each engine, in which any call may be refused: how many were.  Every word that a
// kernel finds is checked, and at the end what is left of the device's.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "driver/emulated/driver.hpp"
#include "engine/allocation/allocator.hpp"
#include "engine/managed/managed_set.hpp"
#include "engine/paging/pager.hpp"
#include "engine/paging/shared_budget.hpp"
#include "process/program.hpp"
#include "watched_driver.hpp"

namespace penstock::testing::scenarios {

using engine::Evicted;

inline constexpr Bytes kGranule = 64 * kKiB;

// Sees each call of the engine's before the device does.
inline WatchedDriver::Watch watch;
// Of the last run, when everything had been taken away.
inline driver::LiveCounts left;

// What the C API makes of a call that finds no host memory; false: it failed.
template <class Function>
bool worked(Function&& function) {
  try {
    return function().ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// An emulated GPU with a stream, which is no part of what is tested.
struct Machine {
  Machine() {
    const Shelter shelter;
    host = driver::open_host_driver({.capacity = 64 * kGranule, .granularity = kGranule}).value();
    device = std::make_unique<WatchedDriver>(*host, watch);
    stream = host->create_stream().value();
  }
  ~Machine() {
    const Shelter shelter;
    CHECK(host->synchronize(stream).ok());
    CHECK(host->destroy_stream(stream).ok());
    CHECK(wrong == 0);
    left = host->live();
    host.reset();
  }
  template <class Call>
  bool tried(Call&& call) {
    const bool well = worked(call);
    refused += well ? 0 : 1;
    return well;
  }
  // For a call that gives something: it, or a default.
  template <class Call>
  auto got(Call&& call) {
    std::decay_t<decltype(call().value())> value{};
    tried([&]() -> Status {
      auto result = call();
      if (result.ok()) value = std::move(result).value();
      return result.status();
    });
    return value;
  }
  // A kernel that finds `value` in all words, and adds 1.
  void add(Addr address, Bytes bytes, std::uint64_t value) {
    const Shelter shelter;
    CHECK(host->launch(stream,
                       [=, this] {
                         auto* words = reinterpret_cast<std::uint64_t*>(address);
                         for (Bytes i = 0; i < bytes / 8; ++i) wrong += words[i]++ != value;
                       })
              .ok());
  }

  std::unique_ptr<driver::HostDriver> host;
  std::unique_ptr<WatchedDriver> device;
  driver::Stream stream{};
  std::atomic<std::int64_t> wrong{0};
  int refused = 0;
};

// Before an engine goes its program's work is over, whatever the engine can wait for.
struct Settled {
  explicit Settled(Machine& of) : machine(of) {}
  ~Settled() {
    const Shelter shelter;
    CHECK(machine.host->synchronize(machine.stream).ok());
  }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;
  Machine& machine;
};

// Layers of a range, whose kernels change them.
class Layers {
 public:
  Layers(Machine& machine, engine::Pager& pager, int count, Bytes bytes)
      : machine_(machine), pager_(pager), bytes_(bytes) {
    {
      const Shelter shelter;
      values_.assign(static_cast<std::size_t>(count), 0);
      uses_.assign(values_.size(), -1);
    }
    const Bytes all = bytes * values_.size();
    if (!machine.tried([&]() -> Status {
          PENSTOCK_ASSIGN(const std::int32_t index,
                          pager.create_range(all, engine::RangeKind::kPaged));
          range_ = pager.range(index);
          return {};
        })) {
      return;
    }
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      if (!machine.tried([&]() -> Status {
            PENSTOCK_ASSIGN(uses_[i], pager.define_use({{address(i), bytes, true}}));
            return {};
          })) {
        uses_[i] = -1;
      }
    }
  }
  void sweep() {
    machine_.tried([&] { return pager_.iteration(); });
    for (std::size_t i = 0; i < uses_.size(); ++i) layer(i);
  }
  void layer(std::size_t i) {
    if (uses_[i] < 0 || !machine_.tried([&] { return pager_.begin(uses_[i], machine_.stream); })) {
      return;
    }
    machine_.add(address(i), bytes_, values_[i]++);
    machine_.tried([&] { return pager_.end(uses_[i], machine_.stream); });
  }
  void check() {
    if (range_.bytes == 0) return;
    const auto flush = [&] { return pager_.flush(range_.address, range_.bytes); };
    if (!machine_.tried(flush) && !machine_.tried(flush)) return;
    const Shelter shelter;
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(range_.host + bytes_ * i);
      for (Bytes k = 0; k < bytes_ / 8; ++k) machine_.wrong += words[k] != values_[i];
    }
  }

 private:
  [[nodiscard]] Addr address(std::size_t i) const { return range_.address + bytes_ * i; }

  Machine& machine_;
  engine::Pager& pager_;
  const Bytes bytes_;
  engine::Range range_;
  std::vector<engine::UseId> uses_;
  std::vector<std::uint64_t> values_;  // of the layers' words, after the kernels so far
};

inline engine::PagerOptions pager_options(Evicted evicted) {
  return {.budget = 8 * kGranule,
          .chunk_bytes = kGranule,
          .look_ahead_bytes = 2 * kGranule,
          .max_copy_bytes = 2 * kGranule,
          .evicted = evicted,
          .profile_every = 2};
}

inline int page(Evicted evicted) {
  Machine machine;
  const auto pager =
      machine.got([&] { return engine::Pager::create(*machine.device, pager_options(evicted)); });
  if (!pager) return machine.refused;
  const Settled settled(machine);
  machine.tried([&] { return pager->create_range(kGranule, engine::RangeKind::kPinned).status(); });
  Layers layers(machine, *pager, 6, 5 * kGranule / 2);
  for (int i = 0; i < 3; ++i) layers.sweep();
  machine.tried([&] { return pager->resize(6 * kGranule); });
  for (int i = 0; i < 2; ++i) layers.sweep();
  layers.layer(3);  // out of its turn
  layers.sweep();
  layers.check();
  return machine.refused;
}

inline int share() {
  Machine machine;
  engine::SharedBudget shared(12 * kGranule);
  engine::BudgetedDriver counted(*machine.device);
  const auto pager = machine.got(
      [&] { return engine::Pager::create(*machine.device, pager_options(Evicted::kUnmapped)); });
  if (!pager) return machine.refused;
  const Settled settled(machine);
  const bool joined = machine.tried([&] { return shared.join(*pager); });
  machine.tried([&] { return counted.count_in(&shared); });
  {
    Layers layers(machine, *pager, 5, 5 * kGranule / 2);
    layers.sweep();
    std::vector<driver::Chunk> chunks;
    {
      const Shelter shelter;
      chunks.reserve(8);
    }
    for (int i = 0; i < 8; ++i) {
      const auto chunk =
          machine.got([&] { return counted.create_chunk(kGranule, driver::Place::kDevice); });
      if (chunk != driver::Chunk{}) chunks.push_back(chunk);
    }
    layers.sweep();
    for (const driver::Chunk chunk : chunks) {
      machine.tried([&] { return counted.release_chunk(chunk); });
    }
    layers.sweep();
    layers.check();
  }
  machine.tried([&] { return counted.count_in(nullptr); });
  if (joined) shared.leave(*pager);
  const engine::SharedBudget::Use use = shared.use();
  const Shelter shelter;
  CHECK(use.others == 0);
  CHECK(use.pagers == 0);
  return machine.refused;
}

struct Tensor {
  Addr address = 0;
  std::uint64_t value = 0;
};

inline void work(Machine& machine, engine::Program& program, Tensor& tensor, Bytes bytes) {
  const engine::TouchedAddress touched{tensor.address, 0, true};
  if (!machine.tried([&] { return program.announce(machine.stream, std::span(&touched, 1)); })) {
    return;
  }
  machine.add(tensor.address, bytes, tensor.value++);
  program.given(machine.stream);
}

inline int announce(Evicted evicted) {
  Machine machine;
  const auto program = machine.got([&] {
    return engine::Program::create(*machine.device, {.budget = 12 * kGranule,
                                                     .page_bytes = kGranule,
                                                     .evicted = evicted,
                                                     .start_paging = [] {},
                                                     .widened = {}});
  });
  if (!program) return machine.refused;
  const Settled settled(machine);
  constexpr Bytes kBytes = 2 * kGranule;
  std::vector<Tensor> tensors;
  {
    const Shelter shelter;
    tensors.reserve(16);
  }
  const auto make = [&] {
    const Addr address =
        machine.got([&] { return program->allocator().allocate(kBytes, machine.stream); });
    if (address == 0) return;
    // Written as a whole before it is read.
    const engine::TouchedAddress touched{address, 0, true};
    if (!machine.tried([&] { return program->announce(machine.stream, std::span(&touched, 1)); })) {
      machine.tried([&] { return program->allocator().free(address); });
      return;
    }
    {
      const Shelter shelter;
      CHECK(machine.host->fill(address, 0, kBytes, machine.stream).ok());
    }
    program->given(machine.stream);
    tensors.push_back({address, 0});
  };
  for (int i = 0; i < 9; ++i) make();
  for (int round = 0; round < 4; ++round) {
    for (Tensor& tensor : tensors) work(machine, *program, tensor, kBytes);
  }
  // A table that names a block, copied, and a pin.
  if (tensors.size() > 2) {
    const engine::HeldAddress held{tensors[0].address, tensors[2].address};
    const engine::TouchedAddress to{tensors[0].address, 8, true};
    if (machine.tried([&] {
          return program->announce(machine.stream, std::span(&to, 1), false, 0,
                                   engine::WorkKind::kCopy, std::span(&held, 1));
        })) {
      program->given(machine.stream);
    }
    work(machine, *program, tensors[0], kBytes);
    const engine::Pin pin = machine.got([&] { return program->pin(tensors[1].address); });
    for (Tensor& tensor : tensors) work(machine, *program, tensor, kBytes);
    program->unpin(pin);
    machine.tried([&] { return program->stay(tensors[1].address); });
  }
  for (int i = 0; i < 2 && !tensors.empty(); ++i) {
    const Addr address = tensors.back().address;
    if (machine.tried([&] { return program->allocator().free(address); })) tensors.pop_back();
    make();
    for (Tensor& tensor : tensors) work(machine, *program, tensor, kBytes);
  }
  machine.tried([&] { return program->allocator().empty_cache(); });
  machine.tried([&] { return program->stream_gone(machine.stream); });
  return machine.refused;
}

inline int allocate() {
  Machine machine;
  const auto allocator = machine.got([&] {
    return engine::Allocator::create(
        *machine.device, {.packing = {.smallest_chunk = kGranule, .largest_chunk = kGranule}});
  });
  if (!allocator) return machine.refused;
  const Settled settled(machine);
  std::vector<Addr> live;
  {
    const Shelter shelter;
    live.reserve(32);
  }
  const auto get = [&](Bytes bytes) {
    const Addr address = machine.got([&] { return allocator->allocate(bytes, machine.stream); });
    if (address != 0) live.push_back(address);
  };
  for (int i = 0; i < 10; ++i) get(kGranule);
  const auto give_back = [&](std::size_t every) {
    for (std::size_t i = live.size(); i-- > 0;) {
      if (i % every != 0) continue;
      const Addr address = live[i];
      if (!machine.tried([&] { return allocator->free(address); })) continue;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
  };
  give_back(2);
  get(3 * kGranule);  // a stitch
  if (!live.empty()) {
    machine.tried([&] { return allocator->record_stream(live.front(), driver::Stream{2}); });
  }
  machine.tried([&] { return allocator->begin_pool({1, 1}, [](driver::Stream) { return true; }); });
  get(kGranule);
  machine.tried([&] { return allocator->end_pool({1, 1}); });
  machine.tried([&] { return allocator->release_pool({1, 1}); });
  get(50 * kGranule);
  give_back(1);
  give_back(1);
  const auto empty = [&] { return allocator->empty_cache(); };
  if (!machine.tried(empty)) machine.tried(empty);
  const Shelter shelter;
  if (!watch) CHECK(machine.host->live().chunks == 0);
  return machine.refused;
}

inline int manage() {
  Machine machine;
  std::vector<engine::GroupSpec> specs;
  {
    const Shelter shelter;
    specs.assign(6, {2 * kGranule});
  }
  const auto set = machine.got([&] {
    return engine::ManagedSet::create(
        *machine.device,
        {.budget = 6 * kGranule, .mover = {.read_mostly = true, .streams = 1}, .profile_every = 2},
        specs);
  });
  if (!set) return machine.refused;
  const Settled settled(machine);
  const auto use = [&](engine::GroupId id) {
    if (!machine.tried([&] { return set->begin(id, machine.stream); })) return;
    const Addr address = set->group(id).value().address;
    {
      const Shelter shelter;
      CHECK(machine.host
                ->launch(machine.stream,
                         [&, address] {
                           machine.wrong += machine.host->managed_resident(address, 2 * kGranule) !=
                                            2 * kGranule;
                         })
                .ok());
    }
    machine.tried([&] { return set->end(id, machine.stream); });
  };
  for (int round = 0; round < 4; ++round) {
    machine.tried([&] { return set->iteration(); });
    for (engine::GroupId id = 0; id < 6; ++id) use(round == 2 ? 5 - id : id);
  }
  machine.tried([&] { return set->resize(8 * kGranule); });
  machine.tried([&] { return set->resize(5 * kGranule); });
  for (engine::GroupId id = 0; id < 6; ++id) use(id);
  return machine.refused;
}

}  // namespace penstock::testing::scenarios
