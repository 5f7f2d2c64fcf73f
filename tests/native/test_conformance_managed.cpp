// SPDX-License-Identifier: Apache-2.0
// Conformance: page-locked host memory and managed memory.
#include <algorithm>
#include <cstring>

#include "conformance.hpp"
#include "conformance_bench.hpp"

namespace penstock::driver::conformance {
namespace {

void page_locked(Driver& driver) {
  Bench bench(driver);
  const Bytes granule = bench.granule;
  const Addr address = bench.backed({2 * granule});
  const Stream stream = bench.stream();
  for (const Bytes size : {Bytes{1}, Bytes{4095}, Bytes{4097}, granule + 17}) {
    std::uint8_t* from = bench.page_locked(size);
    std::uint8_t* to = bench.page_locked(size);
    const ByteVector bytes = pattern(size, 50 + size);
    std::memcpy(from, bytes.data(), size);
    std::memset(to, 0, size);
    PENSTOCK_REQUIRE_OK(driver.copy_in(address + 1, from, size, stream));
    PENSTOCK_REQUIRE_OK(driver.copy_out(to, address + 1, size, stream));
    PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
    CHECK(std::equal(bytes.begin(), bytes.end(), to));
  }
}

void page_locked_arguments(Driver& driver) {
  Bench bench(driver);
  PENSTOCK_CHECK_CODE(driver.host_alloc(0).status(), Code::kInvalidArgument);
  auto got = driver.host_alloc(100);
  PENSTOCK_REQUIRE_OK(got.status());
  PENSTOCK_CHECK_CODE(driver.host_free(static_cast<std::uint8_t*>(got.value()) + 1),
                      Code::kInvalidArgument);
  PENSTOCK_CHECK_OK(driver.host_free(got.value()));
  PENSTOCK_CHECK_CODE(driver.host_free(got.value()), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.host_free(nullptr), Code::kInvalidArgument);
}

std::uint8_t* host_view(Addr address) { return reinterpret_cast<std::uint8_t*>(address); }

void managed_round_trip(Driver& driver) {
  if (!driver.info().concurrent_managed) return;
  Bench bench(driver);
  const Bytes size = 2 * sizeable(driver);
  const Addr address = bench.managed(size);
  const Addr device = bench.backed({size});
  const Stream stream = bench.stream();
  ByteVector bytes = pattern(size, 60);
  std::memcpy(host_view(address), bytes.data(), size);  // written by the host
  PENSTOCK_REQUIRE_OK(driver.managed_prefetch(address, size, Place::kDevice, stream));
  PENSTOCK_REQUIRE_OK(driver.copy_within(device, address, size, stream));
  PENSTOCK_REQUIRE_OK(driver.fill(address + 12345, 7, 100, stream));  // and by the device
  std::fill_n(bytes.begin() + 12345, 100, std::uint8_t{7});
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  CHECK(bench.read(address, size) == bytes);
  PENSTOCK_REQUIRE_OK(driver.managed_prefetch(address, size, Place::kHost, stream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  CHECK(std::equal(bytes.begin(), bytes.end(), host_view(address)));
  PENSTOCK_REQUIRE_OK(driver.managed_prefetch(address, size, Place::kDevice, kDefaultStream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
  CHECK(bench.read(address, size) == bytes);
}

void managed_advice(Driver& driver) {
  if (!driver.info().concurrent_managed) return;
  Bench bench(driver);
  const Bytes size = 2 * sizeable(driver);
  const Addr address = bench.managed(size);
  const Stream stream = bench.stream();
  const ByteVector bytes = pattern(size, 61);
  std::memcpy(host_view(address), bytes.data(), size);
  for (const Advice advice : {Advice::kPreferDevice, Advice::kReadMostly, Advice::kUnsetPreferred,
                              Advice::kUnsetReadMostly, Advice::kPreferHost, Advice::kMapOnDevice,
                              Advice::kUnsetPreferred}) {
    PENSTOCK_CHECK_OK(driver.managed_advise(address, size, advice));
    PENSTOCK_CHECK_OK(driver.managed_prefetch(address, size, Place::kDevice, stream));
    PENSTOCK_CHECK_OK(driver.managed_prefetch(address, size / 2, Place::kHost, stream));
    PENSTOCK_CHECK_OK(driver.synchronize(stream));
    CHECK(bench.read(address, size) == bytes);
    CHECK(std::equal(bytes.begin(), bytes.end(), host_view(address)));
  }
}

void managed_arguments(Driver& driver) {
  if (!driver.info().managed) {
    PENSTOCK_CHECK_CODE(driver.managed_alloc(kMiB).status(), Code::kUnsupported);
    return;
  }
  Bench bench(driver);
  const Bytes size = 2 * bench.granule;
  PENSTOCK_CHECK_CODE(driver.managed_alloc(0).status(), Code::kInvalidArgument);
  const Addr address = bench.managed(size);
  const auto refused = [&](Addr at, Bytes bytes) {
    PENSTOCK_CHECK_CODE(driver.managed_advise(at, bytes, Advice::kReadMostly),
                        Code::kInvalidArgument);
    PENSTOCK_CHECK_CODE(driver.managed_prefetch(at, bytes, Place::kDevice, kDefaultStream),
                        Code::kInvalidArgument);
  };
  refused(address, size + 1);
  refused(address + size, 1);
  refused(address, 0);
  refused(bench.backed({bench.granule}), bench.granule);
  PENSTOCK_CHECK_CODE(driver.managed_free(address + bench.granule), Code::kInvalidArgument);
  auto other = driver.managed_alloc(size);
  PENSTOCK_REQUIRE_OK(other.status());
  PENSTOCK_CHECK_OK(driver.managed_free(other.value()));
  PENSTOCK_CHECK_CODE(driver.managed_free(other.value()), Code::kInvalidArgument);
}

}  // namespace

std::vector<Rule> rules_of_managed() {
  return {
      {"page-locked memory has every byte asked for", page_locked},
      {"page-locked memory is freed once", page_locked_arguments},
      {"managed memory keeps its bytes wherever it is", managed_round_trip},
      {"every advice is taken", managed_advice},
      {"managed calls refuse what is not managed", managed_arguments},
  };
}

}  // namespace penstock::driver::conformance
