// SPDX-License-Identifier: Apache-2.0
// The driver with a clock: when work, copies and waits would end.
#include "doctest/doctest.h"
#include "lab/machines/modelled_driver.hpp"

namespace penstock::driver {
namespace {

std::unique_ptr<ModelledDriver> open() {
  auto made = ModelledDriver::open({.link_gb_per_s = 10, .copy_latency_us = 0});
  REQUIRE(made.ok());
  return std::move(made).value();
}

constexpr Bytes kMegabyte = 1'000'000;  // 100 us on that link

TEST_CASE("modelled driver: a copy waits for its stream, for the link, and for nothing else") {
  const auto device = open();
  const Stream a = device->create_stream().value();
  const Stream b = device->create_stream().value();
  device->launch(a, 250'000);
  CHECK(device->copy_in(0, nullptr, kMegabyte, a).ok());  // after the kernel
  CHECK(device->end_of(a) == 350'000);
  CHECK(device->copy_in(0, nullptr, kMegabyte, b).ok());  // asked for later, and done before it
  CHECK(device->end_of(b) == 100'000);
  CHECK(device->copy_in(0, nullptr, 2 * kMegabyte, b).ok());  // does not fit before: behind
  CHECK(device->end_of(b) == 550'000);
  CHECK(device->copy_out(nullptr, 0, kMegabyte, b).ok());
  CHECK(device->end_of(b) == 650'000);
  const Stream c = device->create_stream().value();
  CHECK(device->copy_out(nullptr, 0, kMegabyte, c).ok());  // the other direction is free
  CHECK(device->end_of(c) == 100'000);
  CHECK(device->now() == 0);
}

TEST_CASE("modelled driver: events happen when what was before them is over") {
  const auto device = open();
  const Stream a = device->create_stream().value();
  const Stream b = device->create_stream().value();
  const Event event = device->create_event(true).value();
  const Event later = device->create_event(true).value();
  CHECK(device->query(event).ok());  // never recorded
  device->launch(a, 5'000);
  CHECK(device->record(event, a).ok());
  device->launch(a, 2'000'000);
  CHECK(device->record(later, a).ok());
  CHECK(device->wait(b, event).ok());
  CHECK(device->end_of(b) == 5'000);
  CHECK(device->query(event).code() == Code::kNotReady);
  device->advance(5'000);
  CHECK(device->query(event).ok());
  CHECK(device->query(later).code() == Code::kNotReady);
  CHECK(device->synchronize(later).ok());
  CHECK(device->now() == 2'005'000);
  CHECK(device->elapsed_ms(event, later).value() == doctest::Approx(2.0));
  CHECK(device->destroy_event(event).ok());
  CHECK(device->destroy_event(later).ok());
  CHECK(device->live().events == 0);
}

TEST_CASE("modelled driver: kernels run one at a time, and mapping takes the caller's time") {
  const auto device = open();
  const Stream a = device->create_stream().value();
  const Stream b = device->create_stream().value();
  const Bytes granule = device->info().granularity;
  const Addr address = device->reserve(granule).value();
  const Chunk chunk = device->create_chunk(granule, Place::kDevice).value();
  CHECK(device->now() == 10'000);
  CHECK(device->map(address, granule, chunk).ok());
  CHECK(device->set_access(address, granule).ok());
  CHECK(device->now() == 10'000 + 1'100 + 26'000);
  device->launch(a, 1'000'000);
  device->launch(b, 1'000'000);
  CHECK(device->kernels_end() == device->now() + 2'000'000);
  CHECK(device->set_access(address, granule).ok());  // a kernel is running
  CHECK(device->now() == 37'100 + 150'000);
  CHECK(device->unmap(address, granule).ok());
  CHECK(device->now() == 37'100 + 150'000 + 60'000);
  CHECK(device->synchronize_device().ok());
  CHECK(device->now() == 37'100 + 2'000'000);
  CHECK(device->unmap(address, granule).code() == Code::kInvalidArgument);  // the books' rules hold
}

TEST_CASE("modelled driver: giving a copy or a digest takes the caller's time") {
  const auto made = ModelledDriver::open(
      {.link_gb_per_s = 10, .copy_latency_us = 0, .copy_call_us = 5, .digest_call_us = 7});
  REQUIRE(made.ok());
  ModelledDriver& device = *made.value();
  const Stream stream = device.create_stream().value();
  CHECK(device.copy_in(0, nullptr, kMegabyte, stream).ok());
  CHECK(device.now() == 5'000);
  CHECK(device.end_of(stream) == 105'000);  // begins when it has been given
  CHECK(device.copy_out(nullptr, 0, kMegabyte, stream).ok());
  CHECK(device.now() == 10'000);
  Fingerprint fingerprint;
  const Bytes size = device.info().granularity;
  void* const host = device.host_alloc(size).value();
  CHECK(device.copy_out_changed(host, Addr{1} << 44, size, &fingerprint, false, stream).ok());
  CHECK(device.now() == 17'000);
  CHECK(device.host_free(host).ok());
}

TEST_CASE("modelled driver: what is still does not go out again") {
  const auto device = open();
  const Stream stream = device->create_stream().value();
  Fingerprint fingerprint;
  const Addr address = Addr{1} << 44;
  const Bytes size = device->info().granularity;
  void* const host = device->host_alloc(size).value();
  bool still = false;
  const auto changes = [&] {
    CHECK(device->copy_out_changed(host, address, size, &fingerprint, still, stream).ok());
    return fingerprint.changes;
  };
  CHECK(changes() == 0);  // never gone out before
  CHECK(changes() == 0);
  const auto sent = device->end_of(stream);
  still = true;
  CHECK(changes() == 0);
  CHECK(device->end_of(stream) - sent < sent / 4);  // compared, and nothing more
  device->changed(address + 100, 8);
  CHECK(changes() == 1);
  CHECK(fingerprint.late == 1);
  CHECK(changes() == 1);
  device->changed(address + size, 8);  // the next one
  CHECK(changes() == 1);
  CHECK(device->live().host_allocations == 1);
  CHECK(device->host_free(host).ok());
  CHECK(device->host_free(host).code() == Code::kInvalidArgument);
  CHECK(!ModelledDriver::open({.link_gb_per_s = 0}).ok());
}

}  // namespace
}  // namespace penstock::driver
