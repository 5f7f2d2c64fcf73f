// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "lab/work_program.hpp"
#include "policy/learning/iterations.hpp"

namespace penstock::engine {
namespace {

// A block lasts that work comes back to so often after so many other pieces.
constexpr std::uint32_t kPause = 24;
constexpr std::uint32_t kReturns = 2;
// A block that is in use over such a part of the pieces lasts, even if it is freed before the end,
// or an iteration is too short for pauses.
constexpr double kSpan = 0.4;
constexpr std::uint32_t kShortPause = 2;

constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

// Of each block, the piece of work before which it was freed, kNever for those that were not; a
// block freed after the last piece was not either.
std::vector<std::uint32_t> freed_before(const WorkProgram& program) {
  std::vector<std::uint32_t> freed(program.blocks.size(), kNever);
  std::uint32_t piece = 0;
  for (const WorkEvent& event : program.events) {
    if (event.op == WorkOp::kWork) ++piece;
    if (event.op == WorkOp::kFree && piece < program.pieces.size()) freed[event.index] = piece;
  }
  return freed;
}

// Every piece that touches lasting blocks, with one number for each code and set of those.
struct Uses {
  std::vector<policy::learning::LastingUse> uses;
  std::vector<std::uint32_t> pieces;
};

Uses uses_of(const WorkProgram& program) {
  Uses found;
  std::map<std::vector<std::uint32_t>, std::int64_t> known;
  for (std::uint32_t i = 0; i < program.pieces.size(); ++i) {
    const WorkPiece& piece = program.pieces[i];
    policy::learning::LastingUse use;
    for (const WorkTouch& touch : program.touches_of(piece)) {
      if (program.blocks[touch.block].lasting) use.blocks.push_back(touch.block);
    }
    if (use.blocks.empty()) continue;
    std::vector<std::uint32_t> key = use.blocks;
    key.push_back(piece.function);
    key.push_back(static_cast<std::uint32_t>(piece.kind));
    const auto number = static_cast<std::int64_t>(known.size());
    use.code = known.try_emplace(std::move(key), number).first->second;
    found.uses.push_back(std::move(use));
    found.pieces.push_back(i);
  }
  return found;
}

}  // namespace

void mark_lasting(WorkProgram& program) {
  struct Seen {
    std::uint32_t first = kNever;
    std::uint32_t last = 0;
    std::uint32_t returns = 0;  // after a pause
    std::uint32_t short_returns = 0;
  };
  std::vector<Seen> seen(program.blocks.size());
  for (std::uint32_t i = 0; i < program.pieces.size(); ++i) {
    for (const WorkTouch& touch : program.touches_of(program.pieces[i])) {
      Seen& block = seen[touch.block];
      if (block.first == kNever) block.first = i;
      if (block.first != i && block.last + kPause < i) ++block.returns;
      if (block.first != i && block.last + kShortPause < i) ++block.short_returns;
      block.last = i;
    }
  }
  const std::vector<std::uint32_t> freed = freed_before(program);
  const double most = kSpan * static_cast<double>(program.pieces.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const bool throughout = seen[i].last - seen[i].first >= most;
    program.blocks[i].lasting = (freed[i] == kNever && seen[i].returns >= kReturns) ||
                                (throughout && seen[i].short_returns >= kReturns);
  }
}

Status find_steps(WorkProgram& program, std::uint64_t wanted) {
  const std::size_t count = program.pieces.size();
  const auto add = [&](std::size_t begin, std::size_t end) {
    program.steps.push_back(
        {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), 0});
  };
  if (wanted > count) return invalid(wanted, " steps of ", count, " pieces of work");
  if (wanted > 0) {
    for (std::size_t i = 0; i < wanted; ++i) add(count * i / wanted, count * (i + 1) / wanted);
    return {};
  }
  const Uses found = uses_of(program);
  std::vector<Bytes> bytes;
  for (const WorkBlock& block : program.blocks) bytes.push_back(block.bytes);
  const std::vector<std::size_t> begins = policy::learning::find_iterations(found.uses, bytes);
  for (std::size_t i = 0; begins.size() > 2 && i + 1 < begins.size(); ++i) {
    const std::size_t begin = found.pieces[begins[i]];
    std::size_t end = count;
    if (begins[i + 1] < found.pieces.size()) {
      end = found.pieces[begins[i + 1]];
    } else if (i > 0) {  // what follows it is the program's end: as long as the one before, then
      const WorkStep& before = program.steps.back();
      end = std::min<std::size_t>(count, begin + (before.end_piece - before.first_piece));
    }
    add(begin, end);
  }
  if (program.steps.empty()) add(0, count);
  return {};
}

void measure_steps(WorkProgram& program) {
  for (WorkStep& step : program.steps) {
    const WorkPiece& last = program.pieces[step.end_piece - 1];
    const std::int64_t end = step.end_piece < program.pieces.size()
                                 ? program.pieces[step.end_piece].at_ns
                                 : last.at_ns + last.call_ns;
    step.recorded_ms = static_cast<double>(end - program.pieces[step.first_piece].at_ns) / 1e6;
  }
}

bool changes(const WorkProgram& program, const WorkPiece& piece, const WorkTouch& touch,
             bool kernels_write) {
  return touch.written &&
         (piece.bounded() || touch.fresh || kernels_write || !program.blocks[touch.block].lasting);
}

}  // namespace penstock::engine
