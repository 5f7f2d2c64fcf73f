// SPDX-License-Identifier: Apache-2.0
#include "lab/replay.hpp"

#include <algorithm>

namespace penstock::engine {
namespace {

class Run {
 public:
  Run(const ReplayProgram& program, ReplaySubject& subject, const ReplayOptions& options)
      : program_(program), subject_(subject), options_(options), handles_(program.slots) {}

  // The op that failed, or the number of ops; another failure than a lack of memory is returned.
  Result<std::size_t> run(ReplayResult& result) {
    std::int64_t spent = 0;
    double at_half = 0;
    bool halved = false;
    std::size_t done = 0;
    for (const ReplayStop& stop : program_.stops) {
      const std::int64_t begin = options_.now_ns();
      const Status status = advance(done, stop.at);
      spent += options_.now_ns() - begin;
      if (!status.ok() && status.code() != Code::kOutOfMemory) return status;
      if (stop.second_half_here) {
        at_half = subject_.modelled_us();
        halved = true;
      } else if (options_.points > 0) {
        result.curve.push_back({stop.time_us, stop.requested, subject_.reserved()});
      }
      if (!status.ok()) break;
    }
    result.modelled_driver_ms = subject_.modelled_us() / 1e3;
    result.modelled_driver_ms_second_half = halved ? (subject_.modelled_us() - at_half) / 1e3 : 0.0;
    result.ns_per_op =
        static_cast<double>(spent) / static_cast<double>(std::max<std::size_t>(done, 1));
    return done;
  }

 private:
  Status advance(std::size_t& done, std::size_t end) {
    for (; done < end; ++done) {
      const ReplayOp& op = program_.ops[done];
      if (op.stream == ReplayOp::kFree) {
        PENSTOCK_TRY(subject_.free(handles_[op.slot]));
      } else {
        PENSTOCK_TRY(subject_.allocate(op.bytes, op.stream, handles_[op.slot]));
      }
    }
    return {};
  }

  const ReplayProgram& program_;
  ReplaySubject& subject_;
  const ReplayOptions& options_;
  std::vector<std::uint64_t> handles_;  // by slot
};

// What the first `count` ops are, and the most that was requested at one time in them.
void count_ops(const ReplayProgram& program, std::size_t count, ReplayResult& result) {
  std::vector<Bytes> held(program.slots);
  Bytes requested = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const ReplayOp& op = program.ops[i];
    if (op.stream == ReplayOp::kFree) {
      ++result.frees;
      requested -= held[op.slot];
    } else {
      ++result.allocations;
      held[op.slot] = op.bytes;
      requested += op.bytes;
      result.peak_requested = std::max(result.peak_requested, requested);
    }
  }
}

}  // namespace

Result<ReplayResult> replay(const Trace& trace, const ReplayOptions& options) {
  PENSTOCK_ASSIGN(const ReplayProgram program, make_replay_program(trace, options.points));
  PENSTOCK_ASSIGN(const auto subject, make_replay_subject(options.subject, program.streams));
  ReplayResult result;
  result.events = trace.op.size();
  result.trace_ms = static_cast<double>(program.duration_us) / 1e3;
  Run run(program, *subject, options);
  PENSTOCK_ASSIGN(const std::size_t done, run.run(result));
  if (done < program.ops.size()) result.failed_event = event_of_op(trace, done);
  count_ops(program, done, result);
  result.peak_reserved = subject->peak_reserved();
  result.map_calls = subject->map_calls();
  result.stitches = subject->stitches();
  result.stitch_hits = subject->stitch_hits();
  return result;
}

}  // namespace penstock::engine
