// SPDX-License-Identifier: Apache-2.0
// One kind of emulated physical memory: a sparse memfd from which pieces are taken and given back.
// A piece reads zero when taken.  Physical memory does not fragment on a GPU, so what is bounded is
// the sum of the pieces; the file grows with each, since a hole in it costs nothing.
// Thread rule: none of its own; the driver's memory lock guards it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/status.hpp"
#include "base/units.hpp"

namespace penstock::driver {

class HostBacking {
 public:
  static Result<std::unique_ptr<HostBacking>> open(const char* name) {
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) {
      return Status(Code::kUnsupported, "memfd_create failed: ", std::strerror(errno),
                    "; the emulated GPU needs it (Linux 3.17 or later, not blocked by seccomp)");
    }
    return std::unique_ptr<HostBacking>(new HostBacking(fd));
  }
  ~HostBacking() { close(fd_); }
  HostBacking(const HostBacking&) = delete;
  HostBacking& operator=(const HostBacking&) = delete;

  int fd() const { return fd_; }
  Bytes used() const { return used_; }

  // The offset of the piece in the file.
  Result<Bytes> take(Bytes size) {
    const Bytes offset = length_;
    if (ftruncate(fd_, static_cast<off_t>(offset + size)) != 0) {
      return Status(Code::kDriver, "cannot grow the emulated memory to ", size_text(offset + size),
                    ": ", std::strerror(errno));
    }
    length_ += size;
    used_ += size;
    return offset;
  }
  // Its contents are gone, its memory with them.
  void give_back(Bytes offset, Bytes size) {
    // Cannot fail on a memfd of our own with a piece inside it.
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(size));
    used_ -= size;
  }

 private:
  explicit HostBacking(int fd) : fd_(fd) {}

  const int fd_;
  Bytes length_ = 0;
  Bytes used_ = 0;
};

}  // namespace penstock::driver
