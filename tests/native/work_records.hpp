// SPDX-License-Identifier: Apache-2.0
// Recordings made up for tests: a program whose layers are swept again and again.
#pragma once

#include <vector>

#include "engine/recording/work_trace.hpp"

namespace penstock::testing {

class WorkRecords {
 public:
  std::uint32_t allocate(Bytes bytes) {
    records.push_back({engine::WorkOp::kAllocate, 0, {}, ++blocks_, at_, bytes});
    return blocks_;
  }
  void free(std::uint32_t block) {
    records.push_back({engine::WorkOp::kFree, 0, {}, block, at_, 0});
  }
  void pin(std::uint32_t block, bool yes) {
    const auto op = yes ? engine::WorkOp::kPin : engine::WorkOp::kUnpin;
    records.push_back({op, 0, {}, block, at_, 0});
  }
  // A kernel that takes `us` and touches all of these blocks.
  void kernel(const std::vector<std::uint32_t>& touched, std::uint32_t function,
              std::uint64_t us = 100, std::uint32_t stream = 0) {
    work(engine::WorkKind::kKernel, touched, function, us, stream);
  }
  void copy_to(std::uint32_t block, std::uint64_t us = 10) {
    work(engine::WorkKind::kCopy, {block}, 0, us, 0);
  }
  void work(engine::WorkKind kind, const std::vector<std::uint32_t>& touched,
            std::uint32_t function, std::uint64_t us, std::uint32_t stream) {
    const auto count = static_cast<std::uint32_t>(touched.size());
    records.push_back(
        {engine::WorkOp::kWork, 0, kind, count, at_, function | std::uint64_t{stream} << 32});
    for (const std::uint32_t block : touched) {
      records.push_back({engine::WorkOp::kTouch, engine::kTouchWritten, {}, block, 0, 0});
    }
    at_ += us * 1000;
  }

  std::vector<engine::WorkRecord> records;

 private:
  std::uint32_t blocks_ = 0;
  std::uint64_t at_ = 5000;
};

// Layers of one block each, filled once and then swept so many times; between two of them `small`
// kernels on a block that is made for the step.
inline WorkRecords sweep(int layers, Bytes bytes, int steps, std::uint64_t us = 100,
                         int small = 0) {
  WorkRecords program;
  std::vector<std::uint32_t> weights;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(program.allocate(bytes));
    program.copy_to(weights.back());
  }
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t hidden = small > 0 ? program.allocate(bytes / 8) : 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::vector<std::uint32_t> touched = {weights[i]};
      if (small > 0) touched.push_back(hidden);
      program.kernel(touched, 7, us);
      for (int k = 0; k < small; ++k) program.kernel({hidden}, 8, us / 8);
    }
    if (small > 0) program.free(hidden);
  }
  return program;
}

}  // namespace penstock::testing
