// SPDX-License-Identifier: Apache-2.0
// One kind of emulated physical memory: a sparse memfd from which pieces are taken and given back.
// A piece reads zero when taken.  Physical memory does not fragment on a GPU, so what is bounded is
// the sum of the pieces; the file itself grows where no hole is large enough, which costs nothing.
// Thread rule: none of its own; the driver's memory lock guards it.
#pragma once

#include <map>
#include <memory>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::driver {

class HostBacking {
 public:
  static Result<std::unique_ptr<HostBacking>> open(const char* name);
  ~HostBacking();
  HostBacking(const HostBacking&) = delete;
  HostBacking& operator=(const HostBacking&) = delete;

  int fd() const { return fd_; }
  Bytes used() const { return used_; }

  Result<Bytes> take(Bytes size);            // the offset of the piece in the file
  void give_back(Bytes offset, Bytes size);  // its contents are gone, its memory with them

 private:
  explicit HostBacking(int fd) : fd_(fd) {}

  const int fd_;
  Bytes length_ = 0;
  Bytes used_ = 0;
  std::map<Bytes, Bytes> holes_;  // offset -> size, never adjacent
};

}  // namespace penstock::driver
