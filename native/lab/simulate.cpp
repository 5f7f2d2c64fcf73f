// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate.hpp"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "lab/least_time.hpp"

namespace penstock::engine {
namespace {

// Launches that a stream takes before the next one has to wait, as on an H200.
constexpr std::size_t kQueue = 1024;
// There are books of every page, 2.5 KiB each, and every touch of one takes its time:
// a short recording must not stand for hours and all memory.
constexpr std::uint64_t kMostPages = std::uint64_t{1} << 20;
constexpr Bytes kMostPageBytes = kTiB;
constexpr std::uint64_t kMostPageTouches = std::uint64_t{1} << 31;

Status check_pages(const WorkProgram& program, const SimulateOptions& options) {
  const Bytes page = std::max(options.granularity, options.page_bytes);
  std::uint64_t touches = program.touches.size();
  for (const WorkBlock& block : program.blocks) touches += block.bytes / page;
  for (const WorkTouch& touch : program.touches) touches += touch.bytes / page;
  struct Count {
    const char* what;
    Bytes page;
    std::uint64_t count;
    std::uint64_t most;
  };
  for (const Count& each : {Count{"of the device", options.granularity,
                                  options.device_bytes / options.granularity, kMostPages},
                            Count{"of blocks at one time", page, program.peak / page, kMostPages},
                            Count{"touched in all", page, touches, kMostPageTouches}}) {
    if (each.count <= each.most) continue;
    return invalid("pages of ", size_text(each.page), " ", each.what, ": ", each.count,
                   "; at most ", each.most, " are simulated");
  }
  return {};
}

class Simulation {
 public:
  Simulation(driver::ModelledDriver& device, const WorkProgram& program, SimulateSubject& subject)
      : device_(device), program_(program), subject_(subject), given_(program.streams) {}

  Status run(SimulateResult& result) {
    for (std::uint32_t i = 0; i < program_.streams; ++i) {
      PENSTOCK_ASSIGN(const driver::Stream stream, device_.create_stream());
      streams_.push_back(stream);
    }
    Status status;
    for (const WorkEvent& event : program_.events) {
      status = carry_out(event, result);
      if (!status.ok()) break;
    }
    if (status.code() == Code::kOutOfMemory && result.failed_piece != SimulateResult::kNone) {
      return {};
    }
    return status;
  }

 private:
  Status carry_out(const WorkEvent& event, SimulateResult& result) {
    switch (event.op) {
      case WorkOp::kAllocate:
        return subject_.allocate(event.index);
      case WorkOp::kFree:
        return subject_.free(event.index);
      case WorkOp::kPin:
      case WorkOp::kUnpin:
        return subject_.pin(event.index, event.op == WorkOp::kPin ? 1 : -1);
      default:
        break;
    }
    const Status status = work(event.index);
    if (status.code() == Code::kOutOfMemory) {
      result.failed_piece = event.index;
      result.failed_bytes = program_.bytes_of(program_.pieces[event.index]);
      return status;
    }
    PENSTOCK_TRY(status);
    count_uses(program_.pieces[event.index]);
    if (step_ < program_.steps.size() && event.index + 1 == program_.steps[step_].first_piece) {
      start_step();
    }
    if (step_ < program_.steps.size() && event.index + 1 == program_.steps[step_].end_piece) {
      end_step(result);
    }
    return {};
  }

  Status work(std::uint32_t index) {
    const WorkPiece& piece = program_.pieces[index];
    const driver::Stream stream = streams_[piece.stream];
    auto& queue = given_[piece.stream];
    while (!queue.empty() && queue.front() <= device_.now()) queue.pop_front();
    if (queue.size() >= kQueue) {
      device_.wait_until(queue.front());
      queue.pop_front();
    }
    PENSTOCK_TRY(subject_.work(index, stream));
    queue.push_back(device_.end_of(stream));
    device_.advance(piece.call_ns);
    if (piece.waits) device_.wait_until(device_.kernels_end());
    return {};
  }

  void count_uses(const WorkPiece& piece) {
    ++visits_;
    for (const WorkTouch& touch : program_.touches_of(piece)) {
      subject_.each_page(touch, [this](Addr page) {
        if (std::exchange(visited_[page], visits_) != visits_) ++uses_;
      });
    }
  }

  void start_step() {
    before_ = subject_.counts();
    uses_ = 0;
    began_ = device_.kernels_end();
    device_.forget_spans_before(began_);
  }

  void end_step(SimulateResult& result) {
    if (program_.steps[step_].first_piece == 0) began_ = 0;
    const SimulateCounts after = subject_.counts();
    const WorkStep& recorded = program_.steps[step_];
    result.steps.push_back({.ms = static_cast<double>(device_.kernels_end() - began_) / 1e6,
                            .recorded_ms = recorded.recorded_ms,
                            .bytes_in = after.bytes_in - before_.bytes_in,
                            .bytes_out = after.bytes_out - before_.bytes_out,
                            .page_uses = uses_,
                            .page_loads = after.loads - before_.loads,
                            .least = {},
                            .first_piece = recorded.first_piece,
                            .end_piece = recorded.end_piece});
    result.spans.clear();
    for (const driver::BusySpan& span : device_.spans()) {
      const driver::Ns begin = std::max(span.begin, began_);
      const driver::Ns end = std::min(span.end, device_.kernels_end());
      if (begin < end) result.spans.push_back({span.lane, begin - began_, end - began_});
    }
    ++step_;
    start_step();  // the next begins where this one ends
  }

  driver::ModelledDriver& device_;
  const WorkProgram& program_;
  SimulateSubject& subject_;
  std::vector<driver::Stream> streams_;
  std::vector<std::deque<driver::Ns>> given_;  // by stream, when what it was given ends
  std::unordered_map<Addr, std::uint64_t> visited_;
  std::uint64_t visits_ = 0;
  std::uint64_t uses_ = 0;
  std::size_t step_ = 0;
  SimulateCounts before_;
  driver::Ns began_ = 0;
};

}  // namespace

Result<SimulateResult> simulate(std::span<const WorkRecord> records,
                                const SimulateOptions& options) {
  SimulateOptions settled = options;
  if (settled.budget < settled.granularity) {
    return invalid("a budget of ", size_text(settled.budget), "; the least is ",
                   size_text(settled.granularity));
  }
  settled.device_bytes = std::max(options.device_bytes, options.budget);
  settled.page_bytes = align_up(std::min(options.page_bytes, kMostPageBytes), options.granularity);
  PENSTOCK_ASSIGN(const WorkProgram program, make_work_program(records, options.steps));
  PENSTOCK_TRY(check_pages(program, settled));
  driver::ModelledDriverOptions machine;
  machine.capacity = settled.device_bytes;
  machine.granularity = settled.granularity;
  machine.link_gb_per_s = settled.link_gb_per_s;
  machine.keep_spans = true;
  if (settled.recorded_budget == 0 || settled.recorded_budget >= program.peak) {
    machine.costs = settled.costs;
    machine.set_access_idle_us = std::min(machine.set_access_idle_us, settled.costs.set_access_us);
    machine.copy_call_us = settled.copy_call_us;
    machine.digest_call_us = settled.digest_call_us;
  } else {
    machine.costs = {0, 0, 0, 0, 0};
    machine.set_access_idle_us = 0;
  }
  PENSTOCK_ASSIGN(const auto device, driver::ModelledDriver::open(machine));
  const bool ours = settled.policy == SimulatePolicy::kPenstock;
  const auto subject = ours ? make_program_subject(*device, program, settled)
                            : make_demand_subject(*device, program, settled);
  PENSTOCK_TRY(subject->start());
  SimulateResult result;
  result.pieces = program.pieces.size();
  result.blocks = program.blocks.size();
  result.peak = program.peak;
  result.page_bytes = subject->page_bytes();
  PENSTOCK_TRY(Simulation(*device, program, *subject).run(result));
  const auto least = least_traffic(program, settled.budget, settled.kernels_write);
  const auto times = least_time(program, settled.budget, settled.link_gb_per_s);
  for (std::size_t i = 0; i < std::min(least.size(), result.steps.size()); ++i) {
    SimulatedStep& step = result.steps[i];
    step.least = least[i];
    const Bytes bytes = std::max(step.least.in, step.least.out);
    const double copies = static_cast<double>(bytes) / settled.link_gb_per_s / 1e6;
    step.least_ms = std::max({step.recorded_ms, copies, times[i]});
  }
  const SimulateCounts counts = subject->counts();
  if (counts.failed > 0) {
    return Status(Code::kHostOutOfMemory, "too little host memory for a simulation");
  }
  result.ahead = counts.ahead;
  result.demanded = counts.demanded;
  return result;
}

}  // namespace penstock::engine
