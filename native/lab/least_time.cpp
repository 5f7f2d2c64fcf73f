// SPDX-License-Identifier: Apache-2.0
#include "lab/least_time.hpp"

#include <algorithm>

namespace penstock::engine {
namespace {

constexpr std::uint32_t kMostCuts = 64;  // of a step; what they cost grows with their number

class Stretches {
 public:
  Stretches(const WorkProgram& program, Bytes budget, double link_gb_per_s)
      : program_(program),
        budget_(budget),
        bytes_per_ms_(link_gb_per_s * 1e6),
        held_(program.touches.size()),
        seen_(program.blocks.size()),
        streams_(program.streams) {
    hold();
  }

  double step(std::uint32_t first, std::uint32_t end) {
    const std::uint32_t cuts = std::clamp<std::uint32_t>(end - first, 1, kMostCuts);
    const auto cut = [&](std::uint64_t i) {
      return first + static_cast<std::uint32_t>((end - first) * i / cuts);
    };
    std::vector<double> until(cuts + 1, 0);  // what it takes up to the cut, at the least
    for (std::uint32_t from = 0; from < cuts; ++from) {
      begin();
      for (std::uint32_t to = from + 1; to <= cuts; ++to) {
        for (std::uint32_t piece = cut(to - 1); piece < cut(to); ++piece) add(piece);
        until[to] = std::max(until[to], until[from] + ms());
      }
    }
    return until[cuts];
  }

 private:
  // By touch, what of it was made before: that may be elsewhere.
  void hold() {
    std::vector<Bytes> content(program_.blocks.size());
    for (const WorkEvent& event : program_.events) {
      if (event.op == WorkOp::kFree) content[event.index] = 0;
      if (event.op != WorkOp::kWork) continue;
      const WorkPiece& piece = program_.pieces[event.index];
      for (std::uint32_t t = piece.first_touch; t < piece.first_touch + piece.touches; ++t) {
        const WorkTouch& touch = program_.touches[t];
        Bytes& held = content[touch.block];
        held_[t] = std::min(held, touch.bytes);
        held = std::max(held, touch.bytes);
      }
    }
  }

  void begin() {
    ++stretch_;
    touched_ = 0;
    std::fill(streams_.begin(), streams_.end(), 0);
  }

  void add(std::uint32_t index) {
    const WorkPiece& piece = program_.pieces[index];
    streams_[piece.stream] += piece.device_ns;
    for (std::uint32_t t = piece.first_touch; t < piece.first_touch + piece.touches; ++t) {
      std::uint32_t& seen = seen_[program_.touches[t].block];
      if (seen == stretch_) continue;
      seen = stretch_;
      touched_ += held_[t];
    }
  }

  [[nodiscard]] double ms() const {
    const std::int64_t work = *std::max_element(streams_.begin(), streams_.end());
    const Bytes missing = touched_ - std::min(touched_, budget_);
    return std::max(static_cast<double>(work) / 1e6, static_cast<double>(missing) / bytes_per_ms_);
  }

  const WorkProgram& program_;
  const Bytes budget_;
  const double bytes_per_ms_;
  std::vector<Bytes> held_;            // by touch
  std::vector<std::uint32_t> seen_;    // by block, the last stretch that touches it
  std::vector<std::int64_t> streams_;  // ns of work on each
  std::uint32_t stretch_ = 0;
  Bytes touched_ = 0;
};

}  // namespace

std::vector<double> least_time(const WorkProgram& program, Bytes budget, double link_gb_per_s) {
  Stretches stretches(program, budget, link_gb_per_s);
  std::vector<double> steps;
  for (const WorkStep& step : program.steps) {
    steps.push_back(stretches.step(step.first_piece, step.end_piece));
  }
  return steps;
}

}  // namespace penstock::engine
