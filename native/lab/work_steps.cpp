// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <unordered_set>

#include "lab/work_program.hpp"
#include "policy/learning/iterations.hpp"
#include "policy/residency/settling.hpp"

namespace penstock::engine {
namespace {

// As engine::Program tells settled blocks.
constexpr policy::residency::Settling kSettling;
constexpr auto kPause = static_cast<std::uint32_t>(kSettling.pause);
constexpr std::uint32_t kReturns = kSettling.returns;
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

// Every piece that touches lasting blocks, as one number for each code and set of those.
struct Uses {
  std::vector<policy::learning::Period::Use> uses;
  std::vector<std::uint32_t> pieces;
};

Uses uses_of(const WorkProgram& program) {
  Uses found;
  std::map<std::vector<std::uint32_t>, policy::learning::Period::Use> known;
  std::vector<std::uint32_t> key;
  for (std::uint32_t i = 0; i < program.pieces.size(); ++i) {
    const WorkPiece& piece = program.pieces[i];
    key.clear();
    for (const WorkTouch& touch : program.touches_of(piece)) {
      if (program.blocks[touch.block].lasting) key.push_back(touch.block);
    }
    if (key.empty()) continue;
    key.push_back(piece.function);
    key.push_back(static_cast<std::uint32_t>(piece.kind));
    const auto number = static_cast<policy::learning::Period::Use>(known.size());
    found.uses.push_back(known.try_emplace(key, number).first->second);
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
        {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), 0, 0, 0});
  };
  if (wanted > count) {
    return {Code::kInvalidArgument,
            std::to_string(wanted) + " steps of " + std::to_string(count) + " pieces of work"};
  }
  if (wanted > 0) {
    for (std::size_t i = 0; i < wanted; ++i) add(count * i / wanted, count * (i + 1) / wanted);
    return {};
  }
  const Uses found = uses_of(program);
  const policy::learning::Iterations iterations = policy::learning::find_iterations(found.uses);
  for (std::size_t i = 0; i < iterations.count; ++i) {
    const std::size_t first = iterations.first + i * iterations.period;
    const std::size_t begin = found.pieces[first];
    std::size_t end = count;
    if (first + iterations.period < found.pieces.size()) {
      end = found.pieces[first + iterations.period];
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
  const std::vector<std::uint32_t> freed = freed_before(program);
  std::vector<std::uint32_t> made(program.blocks.size(), 0);
  std::uint32_t piece = 0;
  for (const WorkEvent& event : program.events) {
    if (event.op == WorkOp::kWork) ++piece;
    if (event.op == WorkOp::kAllocate) made[event.index] = piece;
  }
  for (WorkStep& step : program.steps) {
    const WorkPiece& last = program.pieces[step.end_piece - 1];
    const std::int64_t end = step.end_piece < program.pieces.size()
                                 ? program.pieces[step.end_piece].at_ns
                                 : last.at_ns + last.call_ns;
    step.recorded_ms = static_cast<double>(end - program.pieces[step.first_piece].at_ns) / 1e6;
    // Blocks of the step that do not live through it take room from their making, or its beginning,
    // to their end: changes of that room, by piece.
    std::map<std::uint32_t, std::int64_t> room;
    std::unordered_set<std::uint32_t> known;
    for (std::uint32_t i = step.first_piece; i < step.end_piece; ++i) {
      for (const WorkTouch& touch : program.touches_of(program.pieces[i])) {
        if (!known.insert(touch.block).second) continue;
        const auto bytes = program.blocks[touch.block].bytes;
        // What is made or freed between two steps belongs to one of them.
        const bool before = made[touch.block] < std::max(step.first_piece, std::uint32_t{1});
        if (before && freed[touch.block] > step.end_piece) {
          step.touched += bytes;
          continue;
        }
        room[std::max(made[touch.block], step.first_piece)] += static_cast<std::int64_t>(bytes);
        if (freed[touch.block] < step.end_piece) {
          room[freed[touch.block]] -= static_cast<std::int64_t>(bytes);
        }
      }
    }
    std::int64_t now = 0;
    std::int64_t most = 0;
    for (const auto& [at, change] : room) {
      now += change;
      most = std::max(most, now);
    }
    step.others = static_cast<Bytes>(most);
  }
}

}  // namespace penstock::engine
