// SPDX-License-Identifier: Apache-2.0
#include "process/link.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::engine {
namespace {

// Holds what the measurement needs and frees it in the right order, whatever failed.
class Bench {
 public:
  explicit Bench(driver::Driver& driver) : driver_(driver) {}
  ~Bench() {
    if (stream_ != driver::Stream{}) {
      (void)driver_.synchronize(stream_);
      (void)driver_.destroy_stream(stream_);
    }
    if (from_ != driver::Event{}) (void)driver_.destroy_event(from_);
    if (to_ != driver::Event{}) (void)driver_.destroy_event(to_);
    if (mapped_) (void)driver_.unmap(address_, bytes_);
    if (chunk_ != driver::Chunk{}) (void)driver_.release_chunk(chunk_);
    if (address_ != 0) (void)driver_.unreserve(address_, bytes_);
    if (host_ != nullptr) (void)driver_.host_free(host_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status prepare(Bytes bytes) {
    bytes_ = align_up(std::max<Bytes>(bytes, 1), driver_.info().granularity);
    PENSTOCK_ASSIGN(host_, driver_.host_alloc(bytes_));
    std::memset(host_, 0x5a, bytes_);
    PENSTOCK_ASSIGN(address_, driver_.reserve(bytes_));
    PENSTOCK_ASSIGN(chunk_, driver_.create_chunk(bytes_, driver::Place::kDevice));
    PENSTOCK_TRY(driver_.map(address_, bytes_, chunk_));
    mapped_ = true;
    PENSTOCK_TRY(driver_.set_access(address_, bytes_));
    PENSTOCK_ASSIGN(stream_, driver_.create_stream());
    PENSTOCK_ASSIGN(from_, driver_.create_event(true));
    PENSTOCK_ASSIGN(to_, driver_.create_event(true));
    return {};
  }

  // GB/s of one copy.
  Result<double> copy(bool in) {
    PENSTOCK_TRY(driver_.record(from_, stream_));
    PENSTOCK_TRY(in ? driver_.copy_in(address_, host_, bytes_, stream_)
                    : driver_.copy_out(host_, address_, bytes_, stream_));
    PENSTOCK_TRY(driver_.record(to_, stream_));
    PENSTOCK_TRY(driver_.synchronize(stream_));
    PENSTOCK_ASSIGN(const float ms, driver_.elapsed_ms(from_, to_));
    return ms > 0 ? static_cast<double>(bytes_) / 1e6 / ms : 0.0;
  }

 private:
  driver::Driver& driver_;
  Bytes bytes_ = 0;
  void* host_ = nullptr;
  Addr address_ = 0;
  driver::Chunk chunk_{};
  driver::Stream stream_{};
  driver::Event from_{};
  driver::Event to_{};
  bool mapped_ = false;
};

}  // namespace

Result<LinkSpeed> measure_link(driver::Driver& driver, Bytes bytes, int repeats) {
  Bench bench(driver);
  PENSTOCK_TRY(bench.prepare(bytes));
  LinkSpeed speed;
  for (int i = 0; i < std::max(repeats, 1) + 1; ++i) {  // the first pair warms up
    PENSTOCK_ASSIGN(const double in, bench.copy(true));
    PENSTOCK_ASSIGN(const double out, bench.copy(false));
    if (i == 0) continue;
    speed.in_gb_per_s = std::max(speed.in_gb_per_s, in);
    speed.out_gb_per_s = std::max(speed.out_gb_per_s, out);
  }
  return speed;
}

}  // namespace penstock::engine
