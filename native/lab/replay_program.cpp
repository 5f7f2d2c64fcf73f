// SPDX-License-Identifier: Apache-2.0
#include "lab/replay_program.hpp"

#include <algorithm>
#include <unordered_map>

namespace penstock::engine {
namespace {

constexpr std::uint32_t kMostStreams = 1 << 16;

class Compiler {
 public:
  Compiler(const Trace& trace, std::size_t stops) : trace_(trace), wanted_(stops) {
    begin_ = trace.time_us.front();
    program_.duration_us = trace.time_us.back() - begin_;
    program_.ops.reserve(trace.op.size());
  }

  Result<ReplayProgram> run() {
    for (std::size_t i = 0; i < trace_.op.size(); ++i) {
      if (i > 0 && trace_.time_us[i] < trace_.time_us[i - 1]) return wrong(i, "is in the past");
      if (trace_.stream[i] >= kMostStreams) return wrong(i, "is on a stream beyond 65535");
      stop_until(trace_.time_us[i] - begin_);
      PENSTOCK_TRY(add(i));
      highest_ = std::max(highest_, requested_);
    }
    if (!halved_) half();
    add_stop(program_.duration_us);
    return std::move(program_);
  }

 private:
  Status add(std::size_t i) {
    const std::uint32_t id = trace_.id[i];
    const auto live = live_.find(id);
    const bool known = live != live_.end();
    switch (static_cast<TraceOp>(trace_.op[i])) {
      case TraceOp::kAllocate:
        if (known) return wrong(i, "allocates what is allocated already");
        if (trace_.bytes[i] >> 62 != 0) return wrong(i, "allocates more than an address can hold");
        allocate(i);
        return {};
      case TraceOp::kFreeRequested:
        return known ? Status{} : wrong(i, "frees what is not allocated");
      case TraceOp::kFreeCompleted: {
        if (!known) return wrong(i, "frees what is not allocated");
        const auto [slot, bytes] = live->second;
        program_.ops.push_back({.bytes = 0, .slot = slot});
        requested_ -= bytes;
        spare_.push_back(slot);
        live_.erase(live);
        return {};
      }
      default:
        return wrong(i, "has the unknown op ", trace_.op[i]);
    }
  }

  void allocate(std::size_t i) {
    std::uint32_t slot = 0;
    if (spare_.empty()) {
      slot = static_cast<std::uint32_t>(program_.slots++);
    } else {
      slot = spare_.back();
      spare_.pop_back();
    }
    const Bytes bytes = trace_.bytes[i];
    const std::uint32_t stream = trace_.stream[i];
    live_.emplace(trace_.id[i], std::pair{slot, bytes});
    // A program never asks an allocator for nothing; a trace may say that it got nothing.
    program_.ops.push_back({.bytes = std::max<Bytes>(bytes, 1), .slot = slot, .stream = stream});
    program_.streams = std::max(program_.streams, stream + 1);
    requested_ += bytes;
  }

  // Stops that lie between the event before and the one at `time`.
  void stop_until(std::uint64_t time) {
    if (!halved_ && time >= (program_.duration_us + 1) / 2) half();
    while (wanted_ > 0 && done_ + 1 < wanted_ &&
           time >= (done_ + 1) * program_.duration_us / wanted_ && program_.duration_us > 0) {
      ++done_;
      add_stop(done_ * program_.duration_us / wanted_);
    }
  }

  void half() {
    halved_ = true;
    add_stop(program_.duration_us / 2);
    program_.stops.back().second_half_here = true;
  }

  void add_stop(std::uint64_t time) {
    program_.stops.push_back({program_.ops.size(), time, std::max(highest_, requested_), false});
    highest_ = requested_;
  }

  template <class... Pieces>
  Status wrong(std::size_t i, const Pieces&... what) const {
    return invalid("event ", i, " (op ", trace_.op[i], ", id ", trace_.id[i], ") ", what...);
  }

  const Trace& trace_;
  const std::size_t wanted_;
  std::size_t done_ = 0;
  bool halved_ = false;
  std::uint64_t begin_ = 0;
  ReplayProgram program_;
  std::unordered_map<std::uint32_t, std::pair<std::uint32_t, Bytes>> live_;  // id: slot, bytes
  std::vector<std::uint32_t> spare_;
  Bytes requested_ = 0;
  Bytes highest_ = 0;  // since the last stop
};

}  // namespace

Result<ReplayProgram> make_replay_program(const Trace& trace, std::size_t stops) {
  const std::size_t count = trace.op.size();
  if (trace.id.size() != count || trace.bytes.size() != count || trace.stream.size() != count ||
      trace.time_us.size() != count) {
    return invalid("the arrays of a trace differ in length");
  }
  if (count == 0) return invalid("a trace without events");
  return Compiler(trace, stops).run();
}

std::size_t event_of_op(const Trace& trace, std::size_t op) {
  for (std::size_t i = 0; i < trace.op.size(); ++i) {
    if (trace.op[i] == static_cast<std::uint8_t>(TraceOp::kFreeRequested)) continue;
    if (op-- == 0) return i;
  }
  return trace.op.size();
}

}  // namespace penstock::engine
