// SPDX-License-Identifier: Apache-2.0
// A simulation's subject that is Penstock's own engine, as it runs under `penstock run`: nothing is
// announced but copies before memory is short for the first time.
#include <unordered_map>
#include <vector>

#include "lab/simulate_subject.hpp"

namespace penstock::engine {
namespace {

class ProgramSubject final : public SimulateSubject {
 public:
  using SimulateSubject::SimulateSubject;

  Status start() override {
    PENSTOCK_ASSIGN(engine_, Program::create(device_, engine_options()));
    page_bytes_ = engine_->options().page_bytes;
    device_.set_unit(page_bytes_);
    return {};
  }

  Status allocate(std::uint32_t block) override {
    PENSTOCK_ASSIGN(addresses_[block], engine_->allocator().allocate(program_.blocks[block].bytes,
                                                                     driver::kDefaultStream));
    return {};
  }
  Status free(std::uint32_t block) override { return engine_->allocator().free(addresses_[block]); }
  Status pin(std::uint32_t block, int delta) override {
    std::vector<Pin>& pins = pins_[block];
    if (delta > 0) {
      PENSTOCK_ASSIGN(const Pin pin, engine_->pin(addresses_[block]));
      pins.push_back(pin);
    } else if (!pins.empty()) {
      engine_->unpin(pins.back());
      pins.pop_back();
    }
    return {};
  }

  Status work(std::uint32_t index, driver::Stream stream) override {
    const WorkPiece& piece = program_.pieces[index];
    const bool announced = engine_->pager().paging() || piece.bounded();
    touched_.clear();
    for (const WorkTouch& touch : program_.touches_of(piece)) {
      const bool whole = touch.bytes == program_.blocks[touch.block].bytes;
      const Addr address = addresses_[touch.block] + touch.offset;
      touched_.push_back({address, whole ? 0 : touch.bytes, touch.written});
    }
    if (announced) {
      PENSTOCK_TRY(engine_->announce(stream, touched_, piece.opaque, piece.function, piece.kind));
    }
    for (const WorkTouch& touch : program_.touches_of(piece)) {
      if (!changes(piece, touch)) continue;
      device_.changed(addresses_[touch.block] + touch.offset, touch.bytes);
    }
    device_.launch(stream, piece.device_ns);
    if (announced) engine_->given(stream);
    return {};
  }

  SimulateCounts counts() override {
    const Counters counters = engine_->pager().stats().counters;
    return {.bytes_in = counters.bytes_in,
            .bytes_out = counters.bytes_out,
            .loads = counters.prefetched_pages + counters.demanded_pages,
            .ahead = counters.prefetched_pages,
            .demanded = counters.demanded_pages,
            .failed = counters.failed_moves};
  }

 private:
  std::unique_ptr<Program> engine_;
  std::unordered_map<std::uint32_t, std::vector<Pin>> pins_;
  std::vector<TouchedAddress> touched_;
};

}  // namespace

std::unique_ptr<SimulateSubject> make_program_subject(driver::ModelledDriver& device,
                                                      const WorkProgram& program,
                                                      const SimulateOptions& options) {
  return std::make_unique<ProgramSubject>(device, program, options);
}

}  // namespace penstock::engine
