// SPDX-License-Identifier: Apache-2.0
// A simulation's subject that is Penstock's own engine, as it runs under `penstock run`: nothing is
// announced but copies before memory is short for the first time.
#include <unordered_map>
#include <vector>

#include "lab/simulate_subject.hpp"
#include "process/program.hpp"

namespace penstock::engine {
namespace {

class ProgramSubject final : public SimulateSubject {
 public:
  static Result<std::unique_ptr<SimulateSubject>> open(driver::ModelledDriver& device,
                                                       const WorkProgram& program,
                                                       const SimulateOptions& options) {
    std::unique_ptr<ProgramSubject> subject(new ProgramSubject(device, program, options));
    ProgramOptions wanted;
    wanted.budget = options.budget;
    wanted.page_bytes = options.page_bytes;
    wanted.start_paging = [] {};
    PENSTOCK_ASSIGN(subject->program_, Program::create(device, wanted));
    device.set_unit(subject->page_bytes());
    return std::unique_ptr<SimulateSubject>(std::move(subject));
  }

  Status allocate(std::uint32_t block) override {
    PENSTOCK_ASSIGN(addresses_[block], program_->allocator().allocate(recorded_.blocks[block].bytes,
                                                                      driver::kDefaultStream));
    return {};
  }
  Status free(std::uint32_t block) override {
    return program_->allocator().free(addresses_[block]);
  }
  Status pin(std::uint32_t block, int delta) override {
    std::vector<Pin>& pins = pins_[block];
    if (delta > 0) {
      PENSTOCK_ASSIGN(const Pin pin, program_->pin(addresses_[block]));
      pins.push_back(pin);
    } else if (!pins.empty()) {
      program_->unpin(pins.back());
      pins.pop_back();
    }
    return {};
  }

  Status work(std::uint32_t index, driver::Stream stream) override {
    const WorkPiece& piece = recorded_.pieces[index];
    const bool bounded = piece.kind != WorkKind::kKernel && piece.kind != WorkKind::kGraph;
    const bool announced = program_->pager().paging() || bounded;
    touched_.clear();
    for (std::uint32_t i = 0; i < piece.touches; ++i) {
      const WorkTouch& touch = recorded_.touches[piece.first_touch + i];
      const bool whole = touch.bytes == recorded_.blocks[touch.block].bytes;
      const Addr address = addresses_[touch.block] + touch.offset;
      touched_.push_back({address, whole ? 0 : touch.bytes, touch.written});
    }
    if (announced) {
      PENSTOCK_TRY(program_->announce(stream, touched_, piece.opaque, piece.function, piece.kind));
    }
    for (std::uint32_t i = 0; i < piece.touches; ++i) {
      const WorkTouch& touch = recorded_.touches[piece.first_touch + i];
      if (!changes(recorded_, piece, touch, kernels_write_)) continue;
      device_.changed(addresses_[touch.block] + touch.offset, touch.bytes);
    }
    device_.launch(stream, piece.device_ns);
    if (announced) program_->given(stream);
    return {};
  }

  Addr address_of(std::uint32_t block) const override { return addresses_[block]; }
  Bytes page_bytes() const override { return program_->options().page_bytes; }

  SimulateCounts counts() override {
    const Counters counters = program_->pager().stats().counters;
    return {.bytes_in = counters.bytes_in,
            .bytes_out = counters.bytes_out,
            .loads = counters.prefetched_pages + counters.demanded_pages,
            .plans = counters.plans,
            .mismatches = counters.mismatches};
  }

 private:
  ProgramSubject(driver::ModelledDriver& device, const WorkProgram& program,
                 const SimulateOptions& options)
      : device_(device),
        recorded_(program),
        kernels_write_(options.kernels_write),
        addresses_(program.blocks.size(), 0) {}

  driver::ModelledDriver& device_;
  const WorkProgram& recorded_;
  bool kernels_write_;
  std::unique_ptr<Program> program_;
  std::vector<Addr> addresses_;  // by block
  std::unordered_map<std::uint32_t, std::vector<Pin>> pins_;
  std::vector<TouchedAddress> touched_;
};

}  // namespace

Result<std::unique_ptr<SimulateSubject>> make_program_subject(driver::ModelledDriver& device,
                                                              const WorkProgram& program,
                                                              const SimulateOptions& options) {
  return ProgramSubject::open(device, program, options);
}

}  // namespace penstock::engine
