// SPDX-License-Identifier: Apache-2.0
#include "driver/host_backing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "driver/text.hpp"

namespace penstock::driver {

Result<std::unique_ptr<HostBacking>> HostBacking::open(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) {
    return Status(
        Code::kUnsupported,
        text("memfd_create failed: ", std::strerror(errno),
             "; the emulated GPU needs it (Linux 3.17 or later, not blocked by seccomp)"));
  }
  return std::unique_ptr<HostBacking>(new HostBacking(fd));
}

HostBacking::~HostBacking() { close(fd_); }

Result<Bytes> HostBacking::take(Bytes size) {
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    const auto [offset, length] = *hole;
    if (length < size) continue;
    holes_.erase(hole);
    if (length > size) holes_.emplace(offset + size, length - size);
    used_ += size;
    return offset;
  }
  const Bytes offset = length_;
  if (ftruncate(fd_, static_cast<off_t>(offset + size)) != 0) {
    return Status(Code::kDriver, text("cannot grow the emulated memory to ",
                                      size_text(offset + size), ": ", std::strerror(errno)));
  }
  length_ += size;
  used_ += size;
  return offset;
}

void HostBacking::give_back(Bytes offset, Bytes size) {
  // Cannot fail on a memfd of our own with a piece inside it.
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(size));
  used_ -= size;
  auto hole = holes_.emplace(offset, size).first;
  if (auto next = std::next(hole); next != holes_.end() && offset + size == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole == holes_.begin()) return;
  if (auto before = std::prev(hole); before->first + before->second == offset) {
    before->second += hole->second;
    holes_.erase(hole);
  }
}

}  // namespace penstock::driver
