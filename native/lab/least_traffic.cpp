// SPDX-License-Identifier: Apache-2.0
#include "lab/least_traffic.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::engine {
namespace {

constexpr std::uint32_t kNever = ~std::uint32_t{0};

class Belady {
 public:
  Belady(const WorkProgram& program, Bytes budget, bool kernels_write)
      : program_(program),
        kernels_write_(kernels_write),
        room_(budget),
        blocks_(program.blocks.size()),
        next_(program.touches.size(), kNever) {
    std::vector<std::uint32_t> next(blocks_.size(), kNever);
    for (auto i = static_cast<std::uint32_t>(program.pieces.size()); i-- > 0;) {
      const WorkPiece& piece = program.pieces[i];
      for (std::uint32_t t = piece.first_touch; t < piece.first_touch + piece.touches; ++t) {
        next_[t] = next[program.touches[t].block];
      }
      for (const WorkTouch& touch : program.touches_of(piece)) next[touch.block] = i;
    }
  }

  // False: the budget does not hold it.
  bool carry_out(const WorkEvent& event) {
    switch (event.op) {
      case WorkOp::kWork:
        return work(event.index);
      case WorkOp::kFree:
        leave(event.index);
        break;
      case WorkOp::kPin:
        ++blocks_[event.index].pins;
        break;
      case WorkOp::kUnpin:
        --blocks_[event.index].pins;
        break;
      default:
        break;
    }
    return true;
  }
  [[nodiscard]] Traffic so_far() const { return moved_; }

 private:
  struct Block {
    Bytes content = 0;   // bytes that hold something
    Bytes resident = 0;  // bytes that are on the device
    Bytes changed = 0;   // of those, since they came
    std::uint32_t next = kNever;
    std::uint32_t used = kNever;  // by this piece of work
    std::uint32_t pins = 0;
  };

  bool work(std::uint32_t index) {
    const WorkPiece& piece = program_.pieces[index];
    for (const WorkTouch& touch : program_.touches_of(piece)) blocks_[touch.block].used = index;
    for (std::uint32_t t = piece.first_touch; t < piece.first_touch + piece.touches; ++t) {
      const WorkTouch& touch = program_.touches[t];
      Block& block = blocks_[touch.block];
      order_.erase({block.next, touch.block});
      block.next = next_[t];
      order_.insert({block.next, touch.block});
      const Bytes missing = touch.bytes - std::min(touch.bytes, block.resident);
      if (missing > room_ && !make_room(missing, index)) return false;
      room_ -= missing;
      const Bytes elsewhere = block.content - std::min(block.content, block.resident);
      moved_.in += std::min(missing, elsewhere);
      block.resident += missing;
      if (!changes(program_, piece, touch, kernels_write_)) continue;
      block.content =
          std::min(program_.blocks[touch.block].bytes, std::max(block.content, block.resident));
      block.changed = std::min(block.resident, block.changed + touch.bytes);
    }
    return true;
  }

  bool make_room(Bytes wanted, std::uint32_t piece) {
    for (auto at = order_.end(); room_ < wanted && at != order_.begin();) {
      Block& block = blocks_[(--at)->second];
      if (block.used == piece || block.pins > 0) continue;
      const Bytes leaves = std::min(block.resident, wanted - room_);
      const Bytes same = std::min(leaves, block.resident - block.changed);
      if (block.next != kNever) moved_.out += leaves - same;
      block.changed -= leaves - same;
      block.resident -= leaves;
      room_ += leaves;
      if (block.resident == 0) at = order_.erase(at);
    }
    return room_ >= wanted;
  }

  void leave(std::uint32_t index) {
    Block& block = blocks_[index];
    order_.erase({block.next, index});
    room_ += std::exchange(block.resident, 0);
    block = {};
  }

  const WorkProgram& program_;
  const bool kernels_write_;
  Bytes room_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> next_;                          // by touch, the piece of the next one
  std::set<std::pair<std::uint32_t, std::uint32_t>> order_;  // next use, block: some of it is there
  Traffic moved_;
};

}  // namespace

std::vector<Traffic> least_traffic(const WorkProgram& program, Bytes budget, bool kernels_write) {
  Belady best(program, budget, kernels_write);
  std::vector<Traffic> steps;
  Traffic before;
  for (const WorkEvent& event : program.events) {
    if (!best.carry_out(event) || steps.size() == program.steps.size()) break;
    if (event.op != WorkOp::kWork) continue;
    const WorkStep& step = program.steps[steps.size()];
    if (event.index + 1 == step.first_piece) before = best.so_far();
    if (event.index + 1 != step.end_piece) continue;
    const Traffic now = best.so_far();
    steps.push_back({now.in - before.in, now.out - before.out});
    before = now;
  }
  return steps;
}

}  // namespace penstock::engine
