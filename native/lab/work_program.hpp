// SPDX-License-Identifier: Apache-2.0
// A recording of a program (work_trace.hpp), checked and made ready to be simulated: what happens
// in its order, how long each piece of work takes, and where the program repeats itself.
//
// What a recording has is when the calling thread gave each piece.  A program that is not waited
// for runs as fast as its calls come, so the time to the next call is what a piece takes.  A gap
// much longer than others is taken for a wait for the device, and is shared out among the pieces
// since the wait before, by the bytes that they touch: what limits most work is memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "engine/recording/work_trace.hpp"

namespace penstock::engine {

struct WorkBlock {
  Bytes bytes = 0;
  bool lasting = false;  // work comes back to it over and over, as to a weight
};

struct WorkTouch {
  std::uint32_t block = 0;  // index of blocks
  Bytes offset = 0;
  Bytes bytes = 0;       // within the block
  bool written = false;  // may be, as it was announced
  bool fresh = false;    // the first of its block
};

struct WorkPiece {
  std::uint32_t first_touch = 0;
  std::uint32_t touches = 0;
  std::uint32_t function = 0;
  std::uint32_t stream = 0;
  WorkKind kind = WorkKind::kKernel;
  bool opaque = false;
  bool waits = false;          // the calling thread waits for the device after it
  std::int64_t at_ns = 0;      // since the first piece
  std::int64_t call_ns = 0;    // of the calling thread, until it gives the next
  std::int64_t device_ns = 0;  // on the device

  // What it touches is known in bytes.
  [[nodiscard]] bool bounded() const {
    return kind != WorkKind::kKernel && kind != WorkKind::kGraph;
  }
};

// In the order of the recording; index: of blocks, or of pieces.
struct WorkEvent {
  WorkOp op = WorkOp::kWork;
  std::uint32_t index = 0;
};

struct WorkStep {
  std::uint32_t first_piece = 0;
  std::uint32_t end_piece = 0;
  double recorded_ms = 0;
};

struct WorkProgram {
  std::vector<WorkEvent> events;
  std::vector<WorkBlock> blocks;
  std::vector<WorkTouch> touches;
  std::vector<WorkPiece> pieces;
  std::vector<WorkStep> steps;  // one after the other
  std::uint32_t streams = 0;
  Bytes peak = 0;  // of blocks that live at one time

  [[nodiscard]] std::span<const WorkTouch> touches_of(const WorkPiece& piece) const {
    return std::span(touches).subspan(piece.first_touch, piece.touches);
  }
  [[nodiscard]] Bytes bytes_of(const WorkPiece& piece) const {
    Bytes bytes = 0;
    for (const WorkTouch& touch : touches_of(piece)) bytes += touch.bytes;
    return bytes;
  }
};

// steps: how many the recording is cut into, in pieces alike; 0: by where it repeats itself, or one
// that is all of it.  kInvalidArgument, with the record, for what cannot have happened.
Result<WorkProgram> make_work_program(std::span<const WorkRecord> records, std::uint64_t steps);

// The parts of make_work_program() that look at the program as a whole (work_steps.cpp).
// Tell blocks that work comes back to over and over from those that come and go.
void mark_lasting(WorkProgram& program);
// kInvalidArgument for more steps than there are pieces.
Status find_steps(WorkProgram& program, std::uint64_t wanted);
void measure_steps(WorkProgram& program);

// Whether a kernel, or what else the piece is, changes what it touches.  Who records sees what a
// kernel may write and not what it does: what comes and goes is taken for written, as is a block at
// its first touch; a block that lasts is not, unless kernels_write.
[[nodiscard]] bool changes(const WorkProgram& program, const WorkPiece& piece,
                           const WorkTouch& touch, bool kernels_write);

}  // namespace penstock::engine
