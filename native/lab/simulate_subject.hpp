// SPDX-License-Identifier: Apache-2.0
// What a simulation drives: Penstock's engine, or a pager that brings pages in on demand and lets
// them leave by one of the classic rules; both on a ModelledDriver.  One thread.
#pragma once

#include <memory>
#include <vector>

#include "lab/machines/modelled_driver.hpp"
#include "lab/models/eviction.hpp"
#include "lab/work_program.hpp"
#include "process/program.hpp"

namespace penstock::engine {

enum class SimulatePolicy { kPenstock, kLru, kFifo, kBelady };  // as PENSTOCK_SIMULATE_*

struct SimulateOptions {
  SimulatePolicy policy = SimulatePolicy::kPenstock;
  Bytes budget = 0;  // of device memory
  // Of the recording, if that was paged, which it was if it is below what lived at one time: then
  // the launching thread's recorded times hold the engine's calls, and none is added.
  Bytes recorded_budget = 0;
  Bytes device_bytes = 0;  // of the device; 0: the budget
  Bytes page_bytes = 0;    // 0: as engine::Program has it for the budget
  Bytes granularity = 2 * kMiB;
  std::uint64_t steps = 0;     // see make_work_program()
  bool kernels_write = false;  // lasting blocks too are changed by every kernel that touches them
  double link_gb_per_s = 55;
  driver::DriverCosts costs = {};
  // Of the launching thread, each with the two events and the waits around it.  By a profile of it
  // on an H200's host (benchmarks/results/run/profile.json, at 1.25): 0.45 ms of a step for 69
  // copies, 0.63 for as many digests (of two launches each, where most have one now), 0.34 for
  // their events and those of 172 groups, and what the engine does to place a page.
  double copy_call_us = 11;
  double digest_call_us = 10;
};

struct SimulateCounts {
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  std::uint64_t loads = 0;  // pages brought in that held something
  std::uint64_t ahead = 0;  // of those, before their use; and on demand
  std::uint64_t demanded = 0;
  std::uint64_t failed = 0;  // moves of pages, for want of host memory
};

class SimulateSubject {
 public:
  // The program outlives the subject.
  SimulateSubject(driver::ModelledDriver& device, const WorkProgram& program,
                  const SimulateOptions& options)
      : device_(device),
        program_(program),
        options_(options),
        addresses_(program.blocks.size(), 0) {}
  virtual ~SimulateSubject() = default;
  virtual Status start() = 0;
  virtual Status allocate(std::uint32_t block) = 0;
  virtual Status free(std::uint32_t block) = 0;
  virtual Status pin(std::uint32_t block, int delta) = 0;
  // Everything the piece touches is resident for `stream`; it is given to that and done.
  // kOutOfMemory where the budget does not hold it.
  virtual Status work(std::uint32_t piece, driver::Stream stream) = 0;
  // visit(number) for every page of a touch of a live block.
  template <class Visit>
  void each_page(const WorkTouch& touch, const Visit& visit) const {
    const Addr begin = addresses_[touch.block] + touch.offset;
    const Addr last = begin + touch.bytes - 1;
    for (Addr page = begin / page_bytes_; page <= last / page_bytes_; ++page) visit(page);
  }
  [[nodiscard]] virtual SimulateCounts counts() = 0;
  [[nodiscard]] Bytes page_bytes() const { return page_bytes_; }

 protected:
  [[nodiscard]] bool changes(const WorkPiece& piece, const WorkTouch& touch) const {
    return engine::changes(program_, piece, touch, options_.kernels_write);
  }
  // Penstock's engine with the budget of the options.
  [[nodiscard]] ProgramOptions engine_options() const {
    ProgramOptions wanted;
    wanted.budget = options_.budget;
    wanted.page_bytes = options_.page_bytes;
    wanted.start_paging = [] {};
    return wanted;
  }

  driver::ModelledDriver& device_;
  const WorkProgram& program_;
  const SimulateOptions options_;
  std::vector<Addr> addresses_;  // by block
  Bytes page_bytes_ = 0;         // set by start()
};

std::unique_ptr<SimulateSubject> make_program_subject(driver::ModelledDriver& device,
                                                      const WorkProgram& program,
                                                      const SimulateOptions& options);
std::unique_ptr<SimulateSubject> make_demand_subject(driver::ModelledDriver& device,
                                                     const WorkProgram& program,
                                                     const SimulateOptions& options);

}  // namespace penstock::engine
