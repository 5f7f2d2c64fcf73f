// SPDX-License-Identifier: Apache-2.0
// Host memory that this process may still take, by the word of the kernel and of its control group.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/units.hpp"

namespace penstock::driver::cuda {

class HostRoom {
 public:
  explicit HostRoom(std::string meminfo = "/proc/meminfo",
                    std::string membership = "/proc/self/cgroup",
                    std::string groups = "/sys/fs/cgroup")
      : meminfo_(std::move(meminfo)),
        membership_(std::move(membership)),
        groups_(std::move(groups)) {}

  // 0 where nobody tells.
  [[nodiscard]] Bytes left() const {
    return std::min({field(meminfo_, "MemAvailable:") * kKiB, left_of(kSecond), left_of(kFirst)});
  }

 private:
  static constexpr Bytes kNoLimit = Bytes{1} << 60;  // the first version writes such a number

  // The number behind a name in a file of names and numbers; 0 where it is not there.
  static Bytes field(const std::string& file, const std::string& name) {
    std::ifstream lines(file);
    std::string word;
    Bytes value = 0;
    while (lines >> word) {
      if (word == name) return lines >> value ? value : 0;
    }
    return 0;
  }
  static Bytes number(const std::string& file, Bytes otherwise) {
    std::ifstream text(file);
    Bytes value = 0;
    return text >> value ? value : otherwise;  // "max" is none
  }
  // A version of control groups: how it lists a process's group, and where it has what.
  struct Version {
    const char* listed;
    const char* folder;
    const char* limit;
    const char* usage;
  };
  static constexpr Version kSecond{"0::", "", "/memory.max", "/memory.current"};
  static constexpr Version kFirst{":memory:", "/memory", "/memory.limit_in_bytes",
                                  "/memory.usage_in_bytes"};

  // A container may see its group as the root, whatever `membership_` says.
  [[nodiscard]] Bytes left_of(const Version& version) const {
    Bytes found = kNoLimit;
    for (std::string path = group(version.listed);; path.resize(path.find_last_of('/'))) {
      found = std::min(found, left_in(groups_ + version.folder + path, version));
      if (path.find('/') == std::string::npos) return found;
    }
  }
  // What the file cache holds of it and can give back counts as left.
  static Bytes left_in(const std::string& group, const Version& version) {
    const Bytes limit = number(group + version.limit, kNoLimit);
    if (limit >= kNoLimit) return kNoLimit;
    const std::string stat = group + "/memory.stat";
    const Bytes used = number(group + version.usage, limit);
    const Bytes cache = field(stat, "inactive_file") + field(stat, "active_file");
    const Bytes kept = used - std::min(used, cache);
    return limit - std::min(limit, kept);
  }
  // Without a slash at its end.
  [[nodiscard]] std::string group(const std::string& listed) const {
    std::ifstream lines(membership_);
    std::string line;
    while (std::getline(lines, line)) {
      const std::size_t at = line.find(listed);
      if (at == std::string::npos) continue;
      std::string path = line.substr(at + listed.size());
      return path == "/" ? "" : path;
    }
    return "";
  }

  const std::string meminfo_;
  const std::string membership_;
  const std::string groups_;
};

}  // namespace penstock::driver::cuda
