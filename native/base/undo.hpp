// SPDX-License-Identifier: Apache-2.0
// What is undone where a scope is left early, be it by an exception.
#pragma once

#include <utility>

namespace penstock {

template <class Function>
class [[nodiscard]] Undo {
 public:
  explicit Undo(Function function) : function_(std::move(function)) {}
  ~Undo() {
    if (!kept_) function_();
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  void keep() { kept_ = true; }  // all went well: nothing is undone

 private:
  Function function_;
  bool kept_ = false;
};

}  // namespace penstock
