// SPDX-License-Identifier: Apache-2.0
// The devices of one process behind the driver proxy, a Program each: made when they are first
// asked for, with their share of the budget and their recording; found by ordinal or by address;
// and what is told to people.
//
// Thread rule: any thread, several at once, after configure().
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "driver/driver.hpp"
#include "process/program.hpp"

namespace penstock::engine {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

struct SessionOptions {
  Bytes gpu_memory = 0;  // the budget of each device; 0: gpu_share
  double gpu_share = 0;  // of the device's memory, up to 1; 0: what is free
  Evicted evicted = Evicted::kUnmapped;
  LogLevel log_level = LogLevel::kError;
  const char* record = nullptr;  // the file to record in; it outlives the session
  // Returns when all work from here on is announced, and none given before is on its way.
  void (*start_paging)() = nullptr;
  void (*widened)(Addr begin, Addr end) = nullptr;  // blocks may lie in these addresses as well
};

// Never destroyed: its memory is used until the process ends, or until its context goes.
struct Device {
  std::unique_ptr<driver::Driver> driver;
  std::unique_ptr<WorkRecorder> recorder;
  std::unique_ptr<Program> program;
  std::atomic<bool> held{false};  // by who asks its program for memory until the process ends
  std::atomic<void*> context{nullptr};
  int ordinal = 0;
};

class Session {
 public:
  static constexpr int kMostDevices = 64;

  void configure(const SessionOptions& options) { options_ = options; }
  [[nodiscard]] bool says(LogLevel level) const { return options_.log_level >= level; }

  // The device with this ordinal, made if it is not there.
  Result<Device*> device(int ordinal);
  // The one whose block an address lies in, or null.  Where there is one device it may lie between
  // blocks as well: all that is touched is asked about, and looked up once more by the Program.
  Device* holding(Addr address);
  template <class Visit>
  void each(const Visit& visit) {
    for (int i = 0; i < count_; ++i) {
      Device* const device = devices_[nth(i)].load(std::memory_order_acquire);
      if (device != nullptr) visit(*device);
    }
  }
  // The context is about to be destroyed, with all that was made in it; a program's memory, which
  // is not of any context, is given back here.  Who asks for its device again gets a new program.
  void context_gone(void* context);
  void end_recordings();
  // Said once, unless it is memory that ran out, which the program hears of itself.
  void complain(const Status& status);
  // What paging did on all devices, in a line; empty: there was none.
  std::string summary(std::uint64_t opaque);

 private:
  template <class... Pieces>
  void tell(LogLevel level, const Pieces&... pieces) const;
  Result<Device*> make(int ordinal);
  [[nodiscard]] Bytes budget_for(driver::Driver& device) const;
  std::unique_ptr<WorkRecorder> make_recorder(const driver::Driver& device, Bytes budget) const;
  void start_paging(const Device& device) const;
  void share(Device& made);

  SessionOptions options_;
  std::mutex mutex_;  // of who makes or drops a device
  std::array<std::atomic<Device*>, kMostDevices> devices_{};
  std::array<Status, kMostDevices> refused_;  // why a device is not made, if that is for good
  std::atomic<int> count_{0};                 // of ordinals that were ever asked for
  std::atomic<int> made_{0};                  // devices, those whose context has gone too
  std::atomic<bool> complained_{false};
};

}  // namespace penstock::engine
