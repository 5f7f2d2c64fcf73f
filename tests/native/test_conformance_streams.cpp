// SPDX-License-Identifier: Apache-2.0
// Conformance: what streams and events order, and what they do not.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "conformance.hpp"
#include "conformance_bench.hpp"

namespace penstock::driver::conformance {
namespace {

void stream_order(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Stream stream = bench.stream();
  constexpr int kRounds = 32;
  std::uint8_t* seen = bench.page_locked(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const auto value = static_cast<std::uint8_t>(round + 1);
    PENSTOCK_REQUIRE_OK(driver.fill(address, value, bench.granule, stream));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + round, address + 12345, 1, stream));
  }
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  for (int round = 0; round < kRounds; ++round) CHECK(seen[round] == round + 1);
}

// One stream writes, the other reads, and neither may run ahead.
void ping_pong(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Stream writer = bench.stream();
  const Stream reader = bench.stream();
  const Event written = bench.event();
  const Event taken = bench.event();
  constexpr int kRounds = 32;
  const Bytes size = bench.granule / 8;
  std::uint8_t* seen = bench.page_locked(kRounds * size);
  for (int round = 0; round < kRounds; ++round) {
    PENSTOCK_REQUIRE_OK(driver.wait(writer, taken));  // the first time: never recorded
    PENSTOCK_REQUIRE_OK(driver.fill(address, static_cast<std::uint8_t>(round + 1), size, writer));
    PENSTOCK_REQUIRE_OK(driver.record(written, writer));
    PENSTOCK_REQUIRE_OK(driver.wait(reader, written));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + round * size, address, size, reader));
    PENSTOCK_REQUIRE_OK(driver.record(taken, reader));
  }
  PENSTOCK_REQUIRE_OK(driver.synchronize(taken));
  for (int round = 0; round < kRounds; ++round) {
    const std::uint8_t* begin = seen + round * size;
    CHECK(std::count(begin, begin + size, round + 1) == static_cast<std::ptrdiff_t>(size));
  }
}

void never_recorded(Driver& driver) {
  Bench bench(driver);
  const Event event = bench.event();
  const Stream stream = bench.stream();
  PENSTOCK_CHECK_OK(driver.query(event));
  PENSTOCK_CHECK_OK(driver.synchronize(event));
  PENSTOCK_CHECK_OK(driver.wait(stream, event));
  PENSTOCK_CHECK_OK(driver.wait(kDefaultStream, event));
  PENSTOCK_CHECK_OK(driver.synchronize(stream));
}

// `first` waits for an event; `second` records it anew, after something that comes after that
// wait.  If the wait moved with the record, each would wait for the other for ever.
void record_again_after(Driver& driver, bool recorded_before) {
  Bench bench(driver);
  const Stream first = bench.stream();
  const Stream second = bench.stream();
  const Event moved = bench.event();
  const Event waited = bench.event();
  const Event done = bench.event();
  if (recorded_before) PENSTOCK_REQUIRE_OK(driver.record(moved, second));
  PENSTOCK_REQUIRE_OK(driver.wait(first, moved));
  PENSTOCK_REQUIRE_OK(driver.record(waited, first));
  PENSTOCK_REQUIRE_OK(driver.wait(second, waited));
  PENSTOCK_REQUIRE_OK(driver.record(moved, second));
  PENSTOCK_REQUIRE_OK(driver.wait(first, moved));  // and this one means the second record
  PENSTOCK_REQUIRE_OK(driver.record(done, first));
  require_soon(driver, done, "a wait that an event recorded later must not move");
}

void record_again(Driver& driver) {
  record_again_after(driver, /*recorded_before=*/true);
  record_again_after(driver, /*recorded_before=*/false);
}

void wait_means_last_record(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Stream writer = bench.stream();
  const Stream reader = bench.stream();
  const Event event = bench.event();
  std::uint8_t* seen = bench.page_locked(16);
  for (int round = 0; round < 16; ++round) {
    const auto value = static_cast<std::uint8_t>(2 * round + 1);
    PENSTOCK_REQUIRE_OK(driver.record(event, writer));
    PENSTOCK_REQUIRE_OK(driver.fill(address, value, bench.granule, writer));
    PENSTOCK_REQUIRE_OK(driver.record(event, writer));
    PENSTOCK_REQUIRE_OK(driver.wait(reader, event));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + round, address + round, 1, reader));
    PENSTOCK_REQUIRE_OK(driver.synchronize(reader));
    CHECK(seen[round] == value);
  }
}

void event_destroyed_while_waited_for(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Stream writer = bench.stream();
  const Stream reader = bench.stream();
  std::uint8_t* seen = bench.page_locked(16);
  for (int round = 0; round < 16; ++round) {
    auto event = driver.create_event(false);
    PENSTOCK_REQUIRE_OK(event.status());
    const auto value = static_cast<std::uint8_t>(round + 1);
    PENSTOCK_REQUIRE_OK(driver.fill(address, value, bench.granule, writer));
    PENSTOCK_REQUIRE_OK(driver.record(event.value(), writer));
    PENSTOCK_REQUIRE_OK(driver.wait(reader, event.value()));
    PENSTOCK_REQUIRE_OK(driver.destroy_event(event.value()));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + round, address, 1, reader));
    PENSTOCK_REQUIRE_OK(driver.synchronize(reader));
    CHECK(seen[round] == value);
  }
}

// Looking before the work is done is a race, won at the first try on any sane machine.
void query_pending(Driver& driver) {
  Bench bench(driver);
  const Bytes size = sizeable(driver);
  const Addr address = bench.backed({size});
  std::uint8_t* source = bench.page_locked(size);
  std::fill_n(source, size, std::uint8_t{9});
  const Stream stream = bench.stream();
  const Event event = bench.event();
  bool pending = false;
  for (int attempt = 0; attempt < 20 && !pending; ++attempt) {
    keep_busy(driver, stream, address, source);
    PENSTOCK_REQUIRE_OK(driver.record(event, stream));
    pending = driver.query(event).code() == Code::kNotReady;
    PENSTOCK_REQUIRE_OK(driver.synchronize(event));
    PENSTOCK_CHECK_OK(driver.query(event));
  }
  CHECK(pending);
}

void timing(Driver& driver) {
  Bench bench(driver);
  const Bytes size = sizeable(driver);
  const Addr address = bench.backed({size});
  std::uint8_t* source = bench.page_locked(size);
  std::fill_n(source, size, std::uint8_t{9});
  const Stream stream = bench.stream();
  const Event begin = bench.event(true);
  const Event middle = bench.event(true);
  const Event end = bench.event(true);
  const auto started = std::chrono::steady_clock::now();
  PENSTOCK_REQUIRE_OK(driver.record(begin, stream));
  keep_busy(driver, stream, address, source);
  PENSTOCK_REQUIRE_OK(driver.record(middle, stream));
  keep_busy(driver, stream, address, source);
  PENSTOCK_REQUIRE_OK(driver.record(end, stream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  const std::chrono::duration<float, std::milli> passed =
      std::chrono::steady_clock::now() - started;
  const auto first = driver.elapsed_ms(begin, middle);
  const auto second = driver.elapsed_ms(middle, end);
  const auto whole = driver.elapsed_ms(begin, end);
  for (const auto* result : {&first, &second, &whole}) PENSTOCK_REQUIRE_OK(result->status());
  CHECK(first.value() > 0.0f);
  CHECK(second.value() > 0.0f);
  CHECK(whole.value() == doctest::Approx(first.value() + second.value()).epsilon(0.01));
  CHECK(whole.value() <= passed.count() * 1.01f + 0.1f);
}

void timing_refused(Driver& driver) {
  Bench bench(driver);
  const Stream stream = bench.stream();
  const Event plain = bench.event(false);
  const Event timed = bench.event(true);
  const Event never = bench.event(true);
  PENSTOCK_REQUIRE_OK(driver.record(plain, stream));
  PENSTOCK_REQUIRE_OK(driver.record(timed, stream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  PENSTOCK_CHECK_CODE(driver.elapsed_ms(plain, timed).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.elapsed_ms(timed, plain).status(), Code::kInvalidArgument);
  PENSTOCK_CHECK_CODE(driver.elapsed_ms(timed, never).status(), Code::kInvalidArgument);
}

void destroy_with_work(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const ByteVector bytes = pattern(bench.granule, 40);
  std::uint8_t* source = bench.page_locked(bench.granule);
  std::copy(bytes.begin(), bytes.end(), source);
  const Event done = bench.event();
  auto stream = driver.create_stream();
  PENSTOCK_REQUIRE_OK(stream.status());
  for (int round = 0; round < 16; ++round) {
    PENSTOCK_REQUIRE_OK(driver.fill(address, 0, bench.granule, stream.value()));
    PENSTOCK_REQUIRE_OK(driver.copy_in(address, source, bench.granule, stream.value()));
  }
  PENSTOCK_REQUIRE_OK(driver.record(done, stream.value()));
  PENSTOCK_REQUIRE_OK(driver.destroy_stream(stream.value()));
  PENSTOCK_CHECK_CODE(driver.destroy_stream(stream.value()), Code::kInvalidArgument);
  PENSTOCK_REQUIRE_OK(driver.synchronize(done));
  CHECK(bench.read(address, bytes.size()) == bytes);
}

void default_stream(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Stream stream = bench.stream();
  const Event there = bench.event();
  const Event back = bench.event();
  std::uint8_t* seen = bench.page_locked(32);
  for (int round = 0; round < 16; ++round) {
    const auto value = static_cast<std::uint8_t>(round + 1);
    PENSTOCK_REQUIRE_OK(driver.fill(address, value, bench.granule, kDefaultStream));
    PENSTOCK_REQUIRE_OK(driver.record(there, kDefaultStream));
    PENSTOCK_REQUIRE_OK(driver.wait(stream, there));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + 2 * round, address, 1, stream));
    PENSTOCK_REQUIRE_OK(
        driver.fill(address, static_cast<std::uint8_t>(value + 100), bench.granule, stream));
    PENSTOCK_REQUIRE_OK(driver.record(back, stream));
    PENSTOCK_REQUIRE_OK(driver.wait(kDefaultStream, back));
    PENSTOCK_REQUIRE_OK(driver.copy_out(seen + 2 * round + 1, address, 1, kDefaultStream));
  }
  PENSTOCK_REQUIRE_OK(driver.synchronize(kDefaultStream));
  for (int round = 0; round < 16; ++round) {
    CHECK(seen[2 * round] == round + 1);
    CHECK(seen[2 * round + 1] == round + 101);
  }
}

void per_thread_stream(Driver& driver) {
  Bench bench(driver);
  const Addr address = bench.backed({bench.granule});
  const Event there = bench.event();
  const Stream stream = bench.stream();
  std::uint8_t* seen = bench.page_locked(1);
  std::thread([&] {
    PENSTOCK_CHECK_OK(driver.fill(address, 7, bench.granule, kPerThreadStream));
    PENSTOCK_CHECK_OK(driver.record(there, kPerThreadStream));
  }).join();
  PENSTOCK_REQUIRE_OK(driver.wait(stream, there));
  PENSTOCK_REQUIRE_OK(driver.copy_out(seen, address, 1, stream));
  PENSTOCK_REQUIRE_OK(driver.synchronize(stream));
  CHECK(seen[0] == 7);
  PENSTOCK_CHECK_OK(driver.synchronize(kPerThreadStream));
}

void not_capturing(Driver& driver) {
  Bench bench(driver);
  for (const Stream stream : {bench.stream(), kDefaultStream, kPerThreadStream}) {
    const Result<bool> capturing = driver.capturing(stream);
    PENSTOCK_REQUIRE_OK(capturing.status());
    CHECK_FALSE(capturing.value());
  }
}

}  // namespace

std::vector<Rule> rules_of_streams() {
  return {
      {"work in a stream keeps its order", stream_order},
      {"events order two streams both ways", ping_pong},
      {"an event never recorded is complete", never_recorded},
      {"recording anew does not move a wait", record_again},
      {"a wait means the last record before it", wait_means_last_record},
      {"a destroyed event still holds its waits", event_destroyed_while_waited_for},
      {"query says not ready, then ok", query_pending},
      {"timing events tell the time between them", timing},
      {"events without a time are refused one", timing_refused},
      {"destroying a stream does its work first", destroy_with_work},
      {"the default stream is ordered by events too", default_stream},
      {"a thread's own default stream is ordered by events too", per_thread_stream},
      {"a stream says that it does not capture", not_capturing},
  };
}

}  // namespace penstock::driver::conformance
