// SPDX-License-Identifier: Apache-2.0
// The sequence of a training step, as attach_training() declares it: forward, then layer by layer
// the recomputed forward, backward and the update with its optimizer state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy/types.hpp"

namespace penstock::policy::testing {

struct TrainingShape {
  int layers = 0;
  std::int64_t width = 0;
  std::int64_t vocabulary = 50257;
  std::int64_t positions = 1024;
  Bytes page_bytes = 0;
  Bytes arena_bytes = Bytes{1} << 30;
  double forward_ms = 0;   // of the layers, all together; recomputation costs the same again
  double backward_ms = 0;  // and backward twice that, with the head's share at the ends
};

class TrainingStep {
 public:
  explicit TrainingStep(const TrainingShape& shape) : shape_(shape) {
    const std::int64_t w = shape.width;
    std::vector<std::int64_t> tensors{shape.vocabulary * w, shape.positions * w};
    for (int layer = 0; layer < shape.layers; ++layer) {
      tensors.insert(tensors.end(),
                     {3 * w * w + 3 * w, w * w + w, 4 * w * w + 4 * w, 4 * w * w + w});
    }
    for (const std::int64_t size : tensors) weights_.push_back(lay(static_cast<Bytes>(size) * 4));
    close_arena();
    for (const std::int64_t size : tensors) state_.push_back(lay(static_cast<Bytes>(size) * 8));
    close_arena();
    for (const std::int64_t size : tensors) {
      weight_bytes += static_cast<Bytes>(size) * 4;
      state_bytes += static_cast<Bytes>(size) * 8;
    }
    forward();
    backward();
  }

  Sequence sequence;
  std::vector<double> compute_ms;  // of each step
  Bytes weight_bytes = 0;
  Bytes state_bytes = 0;

 private:
  using Pages = std::vector<PageId>;

  Pages lay(Bytes bytes) {
    if (in_arena_ > 0 && in_arena_ + bytes > shape_.arena_bytes) close_arena();
    const Bytes from = in_arena_;
    in_arena_ += bytes;
    Pages pages;
    for (Bytes at = from / shape_.page_bytes; at <= (in_arena_ - 1) / shape_.page_bytes; ++at) {
      pages.push_back(base_ + static_cast<PageId>(at));
    }
    return pages;
  }

  void close_arena() {
    const auto pages = (in_arena_ + shape_.page_bytes - 1) / shape_.page_bytes;
    base_ += static_cast<PageId>(pages);
    in_arena_ = 0;
    sequence.page_bytes.resize(static_cast<std::size_t>(base_), shape_.page_bytes);
  }

  void step(const std::vector<const Pages*>& uses, const std::vector<const Pages*>& written,
            double ms) {
    Step step;
    compute_ms.push_back(ms);
    for (const Pages* pages : uses)
      step.pages.insert(step.pages.end(), pages->begin(), pages->end());
    for (const Pages* pages : written) {
      step.written.insert(step.written.end(), pages->begin(), pages->end());
    }
    for (auto* list : {&step.pages, &step.written}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    sequence.steps.push_back(std::move(step));
  }

  // A module's share of its layer: the products are 3, 1, 4 and 4 parts.
  static double part(int module) {
    return std::vector<double>{3, 1, 4, 4}[static_cast<std::size_t>(module)] / 12;
  }

  void forward() {
    const double layer_ms = shape_.forward_ms / shape_.layers;
    step({&weights_[0]}, {}, 0.1);
    step({&weights_[1]}, {}, 0.1);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int module = 0; module < 4; ++module) {
        step({&weights_[at(layer, module)]}, {}, layer_ms * part(module));
      }
    }
    step({&weights_[0]}, {}, 0.05 * shape_.forward_ms);
  }

  void backward() {
    const double forward_ms = shape_.forward_ms / shape_.layers;
    const double backward_ms = shape_.backward_ms / shape_.layers;
    step({&weights_[0]}, {}, 0.1 * shape_.forward_ms);
    for (int layer = shape_.layers - 1; layer >= 0; --layer) {
      std::vector<const Pages*> open{&weights_[at(layer, 3)]};
      step(open, {}, 0.01);
      for (int module = 0; module < 3; ++module) {
        open.push_back(&weights_[at(layer, module)]);
        step(open, {}, forward_ms * (module == 2 ? 8 : part(module) * 12) / 12);
      }
      // Of what is open, the last module comes first, then 2, 1, 0.
      for (int module = 3; module >= 0; --module) {
        std::vector<const Pages*> with{&state_[at(layer, module)]};
        for (int other = 0; other <= module; ++other) with.push_back(&weights_[at(layer, other)]);
        step(with, {&state_[at(layer, module)], &weights_[at(layer, module)]},
             backward_ms * part(module));
      }
    }
    for (std::size_t table : {1, 0}) {
      step({&weights_[table]}, {}, 0.1);
      step({&weights_[table], &state_[table]}, {&weights_[table], &state_[table]}, 0.5);
    }
  }

  static std::size_t at(int layer, int module) {
    return static_cast<std::size_t>(2 + 4 * layer + module);
  }

  TrainingShape shape_;
  std::vector<Pages> weights_;
  std::vector<Pages> state_;
  PageId base_ = 0;
  Bytes in_arena_ = 0;
};

}  // namespace penstock::policy::testing
