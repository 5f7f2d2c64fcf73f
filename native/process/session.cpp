// SPDX-License-Identifier: Apache-2.0
#include "process/session.hpp"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace penstock::engine {
namespace {

Bytes host_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  // A fifth is the system's, and the program's own.
  return static_cast<Bytes>(info.totalram) * info.mem_unit / 5 * 4;
}

void say(const Status& status) { std::fprintf(stderr, "penstock: %s\n", status.message().c_str()); }
void say_nothing(const Status&) {}

double in_gib(Bytes bytes) { return static_cast<double>(bytes) / kGiB; }

}  // namespace

Bytes Session::budget_for(driver::Driver& device) const {
  const Bytes total = device.info().total;
  if (options_.gpu_memory != 0) return std::min(options_.gpu_memory, total);
  if (options_.gpu_share > 0) {
    return static_cast<Bytes>(static_cast<double>(total) * options_.gpu_share);
  }
  // What is free, less what kernels' code and the driver itself will still take.
  const auto memory = device.memory_info();
  const Bytes free = memory.ok() ? memory.value().free : total;
  return free - std::min<Bytes>(free / 16, kGiB);
}

// Without a file to record in the program runs as it would have.
std::unique_ptr<WorkRecorder> Session::make_recorder(const driver::Driver& device,
                                                     Bytes budget) const {
  if (options_.record == nullptr) return nullptr;
  WorkRecorderOptions options;
  options.path = options_.record;
  options.suffix = text('.', getpid(), ".gpu", device.info().ordinal);
  options.device = device.info().ordinal;
  options.budget = budget;
  options.device_bytes = device.info().total;
  options.failed = says(LogLevel::kError) ? say : say_nothing;
  auto recorder = WorkRecorder::open(options);
  if (!recorder.ok()) {
    const Status status = recorder.status();
    options.failed({status.code(), "nothing is recorded: " + status.message()});
    return nullptr;
  }
  if (says(LogLevel::kInfo)) {
    std::fprintf(stderr, "penstock: GPU %d is recorded in %s\n", options.device,
                 recorder.value()->path().c_str());
  }
  return std::move(recorder).value();
}

void Session::start_paging(const Device& device) const {
  options_.start_paging();
  if (says(LogLevel::kInfo)) {
    std::fprintf(stderr, "penstock: GPU %d: %.1f GiB are full, paging begins\n", device.ordinal,
                 in_gib(device.program->options().budget));
  }
}

void Session::share(Device& made) {
  each([&](Device& other) {
    for (const Status& status : {other.program->pager().share_with(made.ordinal),
                                 made.program->pager().share_with(other.ordinal)}) {
      if (status.ok() || status.code() == Code::kUnsupported || !says(LogLevel::kWarning)) continue;
      std::fprintf(stderr, "penstock: GPUs %d and %d do not reach each other's memory: %s\n",
                   other.ordinal, made.ordinal, status.message().c_str());
    }
  });
}

Result<Device*> Session::make(int ordinal) {
  auto device = std::make_unique<Device>();
  PENSTOCK_ASSIGN(device->driver, driver::open_cuda_driver(ordinal));
  device->ordinal = ordinal;
  ProgramOptions options;
  options.budget = budget_for(*device->driver);
  options.host_bytes = host_memory();
  options.evicted = options_.evicted;
  Device* const raw = device.get();
  options.start_paging = [this, raw] { start_paging(*raw); };
  options.widened = [this, raw] {
    if (raw->program == nullptr) return;
    const auto [begin, end] = raw->program->window();
    options_.widened(begin, end);
  };
  device->recorder = make_recorder(*device->driver, options.budget);
  options.recorder = device->recorder.get();
  if (options.evicted == Evicted::kOnHost && !device->driver->info().host_chunks &&
      says(LogLevel::kWarning)) {
    std::fprintf(stderr,
                 "penstock: GPU %d cannot map host memory into ranges: under strict an access that "
                 "was not seen faults\n",
                 ordinal);
  }
  PENSTOCK_ASSIGN(device->program, Program::create(*device->driver, options));
  share(*device);
  return device.release();
}

Result<Device*> Session::device(int ordinal) {
  if (ordinal < 0 || ordinal >= kMostDevices) {
    return invalid("there is no GPU ", ordinal);
  }
  auto& slot = devices_[static_cast<std::size_t>(ordinal)];
  if (Device* there = slot.load(std::memory_order_acquire)) return there;
  const std::lock_guard lock(mutex_);
  if (Device* there = slot.load()) return there;
  PENSTOCK_ASSIGN(Device * made, make(ordinal));
  slot.store(made, std::memory_order_release);
  count_ = std::max(count_.load(), ordinal + 1);
  return made;
}

Device* Session::holding(Addr address) {
  Device* found = nullptr;
  each([&](Device& device) {
    const auto [begin, end] = device.program->window();
    if (address >= begin && address < end) found = &device;
  });
  return found;
}

void Session::context_gone(void* context) {
  const std::lock_guard lock(mutex_);
  each([&](Device& device) {
    if (device.context != context) return;
    if (device.recorder != nullptr) device.recorder->close();
    devices_[static_cast<std::size_t>(device.ordinal)] = nullptr;
  });
}

void Session::end_recordings() {
  each([](Device& device) {
    if (device.recorder != nullptr) device.recorder->close();
  });
}

void Session::complain(const Status& status) {
  if (status.ok() || status.code() == Code::kOutOfMemory || complained_.exchange(true)) return;
  if (says(LogLevel::kError)) say(status);
}

std::string Session::summary(std::uint64_t opaque) {
  Counters sum;
  Bytes peak = 0;
  bool paged = false;
  each([&](Device& device) {
    Pager& pager = device.program->pager();
    const PagerStats stats = pager.stats();
    paged = paged || pager.paging();
    sum.bytes_in += stats.counters.bytes_in;
    sum.bytes_out += stats.counters.bytes_out;
    sum.page_hits += stats.counters.page_hits;
    sum.page_uses += stats.counters.page_uses;
    sum.plans += stats.counters.plans;
    sum.mismatches += stats.counters.mismatches;
    sum.demanded_pages += stats.counters.demanded_pages;
    peak += stats.peak_device_bytes;
  });
  if (!paged) return {};
  const double hits = sum.page_uses == 0 ? 100.0
                                         : 100.0 * static_cast<double>(sum.page_hits) /
                                               static_cast<double>(sum.page_uses);
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "%.2f GiB of device memory at most; %.2f GiB paged in, %.2f out; %.1f %% of page "
      "uses were hits; %llu plans, %llu uses against them, %llu pages on demand; %llu "
      "pieces of work not fully seen",
      in_gib(peak), in_gib(sum.bytes_in), in_gib(sum.bytes_out), hits,
      static_cast<unsigned long long>(sum.plans), static_cast<unsigned long long>(sum.mismatches),
      static_cast<unsigned long long>(sum.demanded_pages), static_cast<unsigned long long>(opaque));
  return text;
}

}  // namespace penstock::engine
