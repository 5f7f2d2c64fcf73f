// SPDX-License-Identifier: Apache-2.0
// Pages are encoded by the device: what they are comes in by one buffer, and leaves encoded by the
// other, both ways at once.
#include <algorithm>

#include "base/undo.hpp"
#include "driver/parallel.hpp"
#include "engine/paging/page_copies.hpp"

namespace penstock::engine {
namespace {

// With all the work in it.
void end(driver::Driver& driver, driver::Stream stream) {
  if (!driver.synchronize(stream).ok()) (void)driver.synchronize_device();
  (void)driver.destroy_stream(stream);
}

}  // namespace

// Codes of moves before may still be decoded there.
Status PageCopies::wait_for_buffers(driver::Stream stream) {
  for (const Buffer& buffer : buffers_) PENSTOCK_TRY(buffer.free.make_wait(stream));
  return {};
}

Status PageCopies::survey(std::span<Coding> pieces) {
  const Addr raw = buffers_[0].address;
  const Addr counts = buffers_[1].address;
  const std::size_t most = std::min(pieces.size(), size_ / sizeof(codec::Counts));
  if (most == 0) return {};
  PENSTOCK_ASSIGN(void* const made, driver_.host_alloc(most * sizeof(codec::Counts)));
  const auto* const found = static_cast<const codec::Counts*>(made);
  const Undo free([&] { (void)driver_.host_free(made); });
  PENSTOCK_ASSIGN(const driver::Stream stream, driver_.create_stream());
  const Undo settle([&] { end(driver_, stream); });
  PENSTOCK_TRY(wait_for_buffers(stream));
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), most));
    const Bytes bytes = some.size() * sizeof(codec::Counts);
    PENSTOCK_TRY(driver_.fill(counts, 0, bytes, stream));
    Addr next = counts;
    for (const Coding& piece : some) {
      PENSTOCK_TRY(driver_.copy_in(raw, piece.raw.data(), piece.raw.size(), stream));
      PENSTOCK_TRY(driver_.survey(next, raw, piece.raw.size(), stream));
      next += sizeof(codec::Counts);
    }
    PENSTOCK_TRY(driver_.copy_out(made, counts, bytes, stream));
    PENSTOCK_TRY(driver_.synchronize(stream));
    for (std::size_t i = 0; i < some.size(); ++i) {
      some[i].survey = codec::survey(some[i].raw.size(), found[i]);
    }
    pieces = pieces.subspan(some.size());
  }
  return {};
}

Status PageCopies::encode(std::span<const Coding> pieces) {
  constexpr std::size_t kAtOnce = 32;  // that the host's threads compare, while others come
  const Addr raw = buffers_[0].address;
  const Addr code = buffers_[1].address;
  PENSTOCK_ASSIGN(const driver::Stream in, driver_.create_stream());
  const Undo end_in([&] { end(driver_, in); });
  PENSTOCK_TRY(wait_for_buffers(in));
  PENSTOCK_ASSIGN(const driver::Stream out, driver_.create_stream());
  const Undo end_out([&] { end(driver_, out); });
  Timeline coded(driver_, in);
  Timeline gone(driver_, out);
  std::span<const Coding> before;
  Tick arrived = 0;
  const auto seal = [&] {
    PENSTOCK_TRY(gone.synchronize(arrived));
    return driver::try_in_parallel(before.size(), [&](std::size_t i) {
      return codec::seal({before[i].code, before[i].survey.shape.size()}, before[i].raw);
    });
  };
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), kAtOnce));
    for (const Coding& piece : some) {
      PENSTOCK_TRY(driver_.copy_in(raw, piece.raw.data(), piece.raw.size(), in));
      PENSTOCK_TRY(gone.make_wait(in, gone.latest()));
      PENSTOCK_TRY(driver_.encode(code, raw, piece.survey, in));
      PENSTOCK_ASSIGN(const Tick encoded, coded.record());
      PENSTOCK_TRY(coded.make_wait(out, encoded));
      PENSTOCK_TRY(driver_.copy_out(piece.code, code, piece.survey.shape.size(), out));
      PENSTOCK_TRY(gone.record().status());
    }
    const Tick latest = gone.latest();
    PENSTOCK_TRY(seal());
    before = some;
    arrived = latest;
    pieces = pieces.subspan(some.size());
  }
  return seal();
}

}  // namespace penstock::engine
