// SPDX-License-Identifier: Apache-2.0
// A recording without host memory at any one of its allocations.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "engine/recording/work_recorder.hpp"
#include "host_memory/failing.hpp"

namespace penstock::testing {
namespace {

TEST_CASE("host memory: a recording") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("penstock-memory-" + std::to_string(getpid()));
  fail_each_allocation(
      [&] {
        int refused = 0;
        engine::WorkRecorderOptions options;
        {
          const Shelter shelter;
          std::filesystem::remove(path);
          options.path = path;
        }
        std::unique_ptr<engine::WorkRecorder> recorder;
        const auto tried = [&](auto&& call) { refused += scenarios::worked(call) ? 0 : 1; };
        tried([&]() -> Status {
          PENSTOCK_ASSIGN(recorder, engine::WorkRecorder::open(options));
          return {};
        });
        const engine::RecordedTouch touch{1, 0, 7, true};
        for (std::uint64_t i = 1; recorder && i < 4; ++i) {
          tried([&]() -> Status {
            recorder->work({.stream = i, .function = i}, {&touch, 1});
            return {};
          });
        }
        if (recorder) recorder->close();
        return refused;
      },
      1);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace penstock::testing
