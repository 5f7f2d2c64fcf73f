// SPDX-License-Identifier: Apache-2.0
// The run of engine_scenarios.hpp of a pager whose pages travel encoded.
#pragma once

#include <cstring>

#include "engine_scenarios.hpp"
#include "weights.hpp"

namespace penstock::testing::scenarios {

inline int pack() {
  constexpr Bytes kBlock = 3 * kGranule;
  constexpr std::size_t kBlocks = 5;
  Machine machine;
  std::vector<std::byte> content;
  std::vector<std::byte> found;
  std::vector<engine::Packing> blocks;
  std::vector<engine::UseId> uses;
  {
    const Shelter shelter;
    content.resize(kBlocks * kBlock);
    draw_weights(content, 5);
    found.resize(kBlock);
    uses.assign(kBlocks, -1);
  }
  engine::PagerOptions options = pager_options(Evicted::kUnmapped);
  options.budget = 14 * kGranule;
  const auto pager = machine.got([&] { return engine::Pager::create(*machine.device, options); });
  if (!pager) return machine.refused;
  const Settled settled(machine);
  engine::Range range;
  if (!machine.tried([&]() -> Status {
        PENSTOCK_ASSIGN(const std::int32_t index,
                        pager->create_range(kBlocks * kBlock, engine::RangeKind::kPaged));
        range = pager->range(index);
        return {};
      })) {
    return machine.refused;
  }
  {
    const Shelter shelter;
    std::memcpy(range.host, content.data(), content.size());
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back({range.address + i * kBlock, kBlock, i != 2, nullptr});
    }
  }
  // What is not packed lies where it lay.
  machine.tried([&] { return pager->pack(blocks); });
  for (std::size_t i = 0; i < kBlocks; ++i) {
    machine.tried([&]() -> Status {
      PENSTOCK_ASSIGN(uses[i], pager->define_use({{blocks[i].address, kBlock, false}}));
      return {};
    });
  }
  const auto sweep = [&] {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      if (uses[i] < 0 || !machine.tried([&] { return pager->begin(uses[i], machine.stream); })) {
        continue;
      }
      {
        const Shelter shelter;
        const auto* const at = reinterpret_cast<const std::byte*>(blocks[i].address);
        CHECK(machine.host
                  ->launch(machine.stream,
                           [&, at, i] {
                             machine.wrong += std::memcmp(at, &content[i * kBlock], kBlock) != 0;
                           })
                  .ok());
      }
      machine.tried([&] { return pager->end(uses[i], machine.stream); });
    }
    machine.tried([&] { return pager->iteration(); });
  };
  for (int i = 0; i < 3; ++i) sweep();
  if (machine.tried([&] { return pager->read(blocks[1].address, kBlock, found.data()); })) {
    machine.wrong += std::memcmp(found.data(), &content[kBlock], kBlock) != 0;
  }
  const std::byte* const host =
      machine.got([&] { return pager->unpack(blocks[3].address, kBlock); });
  if (host != nullptr) machine.wrong += std::memcmp(host, &content[3 * kBlock], kBlock) != 0;
  sweep();
  return machine.refused;
}

}  // namespace penstock::testing::scenarios
