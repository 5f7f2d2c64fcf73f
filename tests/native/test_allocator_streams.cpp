// SPDX-License-Identifier: Apache-2.0
// The stitching allocator where a program has several streams: who gets what another one freed, and
// events do not pile up.
#include "allocator_bench.hpp"

namespace penstock::testing {
namespace {

// 40 MiB end an epoch, so that an event tells that their stream is done: nobody has to wait for it.
TEST_CASE("allocator: where memory is short a stream is given what another freed all the same") {
  engine::AllocatorOptions options = small_options();
  options.budget = kGiB;
  Machine machine = open_machine({.capacity = 2 * kGiB}, options, 2);
  const auto get = [&](Bytes bytes, std::size_t stream) {
    return machine.allocator->allocate(bytes, machine.streams[stream]);
  };
  const auto side = get(40 * kMiB, 1);
  const auto rest = get(kGiB - 40 * kMiB, 0);
  PENSTOCK_REQUIRE_OK(side.status());
  PENSTOCK_REQUIRE_OK(rest.status());
  PENSTOCK_REQUIRE_OK(machine.allocator->free(side.value()));
  PENSTOCK_REQUIRE_OK(machine.device->synchronize(machine.streams[1]));
  PENSTOCK_REQUIRE_OK(get(40 * kMiB, 0).status());
  CHECK(machine.allocator->stats().stream_waits == 0);
  machine.close();
}

// Where nobody needs another stream's memory, nobody asks for the events either.
TEST_CASE("allocator: events of a loop over several streams do not pile up") {
  Machine machine = open_machine({.capacity = 4 * kGiB}, small_options(), 2);
  const auto get = [&](std::size_t stream) {
    const auto address = machine.allocator->allocate(48 * kMiB, machine.streams[stream]);
    PENSTOCK_REQUIRE_OK(address.status());
    PENSTOCK_REQUIRE_OK(machine.allocator->free(address.value()));
  };
  for (std::size_t i = 0; i < 500; ++i) {
    get(i % 2);
    PENSTOCK_REQUIRE_OK(machine.device->synchronize(machine.streams[0]));
    PENSTOCK_REQUIRE_OK(machine.device->synchronize(machine.streams[1]));
  }
  CHECK(machine.device->live().events < 100);
  machine.close();
}

}  // namespace
}  // namespace penstock::testing
