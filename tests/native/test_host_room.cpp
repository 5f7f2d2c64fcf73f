// SPDX-License-Identifier: Apache-2.0
// How much of the host's memory is left, from files that say what the kernel's would.
#include <filesystem>
#include <fstream>
#include <string>

#include "conformance.hpp"
#include "driver/cuda/host_room.hpp"

namespace penstock::driver::cuda {
namespace {

struct Host {
  Host() {
    std::filesystem::create_directories(root / "groups" / "a" / "b");
    write("meminfo", "MemTotal: 100 kB\nMemFree: 7 kB\nMemAvailable: 64 kB\n");
    write("membership", "0::/a/b\n");
  }
  ~Host() { std::filesystem::remove_all(root); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root / name) << text;
  }
  void limit(const std::string& group, const std::string& most, int used, int cache) const {
    write("groups/" + group + "memory.max", most + "\n");
    write("groups/" + group + "memory.current", std::to_string(used) + "\n");
    write("groups/" + group + "memory.stat",
          "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 0\n");
  }
  Bytes left() const {
    return HostRoom(root / "meminfo", root / "membership", root / "groups").left();
  }

  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("host_room_" + std::to_string(getpid()));
};

TEST_CASE("host room: the least that the machine and the groups around the process have left") {
  const Host host;
  CHECK(host.left() == 64 * kKiB);
  host.limit("a/b/", "max", 1000, 0);
  CHECK(host.left() == 64 * kKiB);
  host.limit("a/", "9000", 5000, 1000);
  CHECK(host.left() == 5000);
  host.limit("", "3000", 2900, 0);  // as a container sees its own
  CHECK(host.left() == 100);
  host.limit("", "3000", 3100, 0);
  CHECK(host.left() == 0);
}

TEST_CASE("host room: control groups of the first version") {
  const Host host;
  std::filesystem::create_directories(host.root / "groups" / "memory" / "c");
  host.write("membership", "3:cpu:/x\n2:memory:/c\n");
  host.write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  host.write("groups/memory/memory.usage_in_bytes", "500\n");
  CHECK(host.left() == 64 * kKiB);
  host.write("groups/memory/c/memory.limit_in_bytes", "600\n");
  host.write("groups/memory/c/memory.usage_in_bytes", "500\n");
  host.write("groups/memory/c/memory.stat", "inactive_file 10\nactive_file 5\n");
  CHECK(host.left() == 115);
}

TEST_CASE("host room: none where nobody tells") {
  const Host host;
  host.write("meminfo", "");
  CHECK(host.left() == 0);
  host.write("meminfo", "MemAvailable: 64 kB\n");
  host.write("membership", "");
  CHECK(host.left() == 64 * kKiB);
}

}  // namespace
}  // namespace penstock::driver::cuda
