// SPDX-License-Identifier: Apache-2.0
#include "process/session.hpp"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <utility>

#include "policy/residency/page_size.hpp"

namespace penstock::engine {
namespace {

Bytes host_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  // A fifth is the system's, and the program's own.
  return static_cast<Bytes>(info.totalram) * info.mem_unit / 5 * 4;
}

void say(const std::string& words) { std::fprintf(stderr, "penstock: %s\n", words.c_str()); }
void say_failure(const Status& status) { say(status.message()); }
void say_nothing(const Status&) {}

double in_gib(Bytes bytes) { return static_cast<double>(bytes) / kGiB; }

}  // namespace

template <class... Pieces>
void Session::tell(LogLevel level, const Pieces&... pieces) const {
  if (says(level)) say(text(pieces...));
}

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
  options.failed = says(LogLevel::kError) ? say_failure : say_nothing;
  auto recorder = WorkRecorder::open(options);
  if (!recorder.ok()) {
    const Status status = recorder.status();
    options.failed({status.code(), "nothing is recorded: " + status.message()});
    return nullptr;
  }
  tell(LogLevel::kInfo, "GPU ", options.device, " is recorded in ", recorder.value()->path());
  return std::move(recorder).value();
}

void Session::start_paging(const Device& device) const {
  options_.start_paging();
  tell(LogLevel::kInfo, "GPU ", device.ordinal, ": ", std::fixed, std::setprecision(1),
       in_gib(device.program->options().budget), " GiB are full, paging begins");
}

void Session::share(Device& made) {
  each([&](Device& other) {
    for (const Status& status : {other.program->pager().share_with(made.ordinal),
                                 made.program->pager().share_with(other.ordinal)}) {
      if (status.ok() || status.code() == Code::kUnsupported) continue;
      tell(LogLevel::kWarning, "GPUs ", other.ordinal, " and ", made.ordinal,
           " do not reach each other's memory: ", status.message());
    }
  });
}

Result<Device*> Session::make(int ordinal) {
  auto device = std::make_unique<Device>();
  PENSTOCK_ASSIGN(device->driver, driver::open_cuda_driver(ordinal));
  device->ordinal = ordinal;
  ProgramOptions options;
  options.budget = budget_for(*device->driver);
  options.page_bytes =
      policy::residency::page_size(options.budget, device->driver->info().granularity);
  if (options.budget < options.page_bytes) {
    return invalid("GPU ", ordinal, ": a budget of ", size_text(options.budget),
                   " holds no page of ", size_text(options.page_bytes),
                   "; nothing will be paged: give it more by --gpu-memory");
  }
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
  if (options.evicted == Evicted::kOnHost && !device->driver->info().host_chunks) {
    tell(LogLevel::kWarning, "GPU ", ordinal,
         " cannot map host memory into ranges: under strict an access that was not seen faults");
  }
  PENSTOCK_ASSIGN(device->program, Program::create(*device->driver, options));
  share(*device);
  return device.release();
}

Result<Device*> Session::device(int ordinal) {
  if (ordinal < 0 || ordinal >= kMostDevices) return invalid("there is no GPU ", ordinal);
  auto& slot = devices_[nth(ordinal)];
  if (Device* there = slot.load(std::memory_order_acquire)) return there;
  const std::lock_guard lock(mutex_);
  if (Device* there = slot.load()) return there;
  // Asked for again by each call: what cannot change is not tried again.
  Status& refused = refused_[nth(ordinal)];
  PENSTOCK_TRY(refused);
  const Result<Device*> made = make(ordinal);
  if (made.status().code() == Code::kInvalidArgument) refused = made.status();
  PENSTOCK_TRY(made.status());
  slot.store(made.value(), std::memory_order_release);
  ++made_;
  count_ = std::max(count_.load(), ordinal + 1);
  return made;
}

Device* Session::holding(Addr address) {
  Device* found = nullptr;
  each([&](Device& device) {
    const auto [begin, end] = device.program->window();
    if (address < begin || address >= end) return;
    if (made_ == 1 || device.program->block_of(address).bytes != 0) found = &device;
  });
  return found;
}

void Session::context_gone(void* context) {
  const std::lock_guard lock(mutex_);
  each([&](Device& device) {
    if (device.context != context) return;
    if (device.recorder != nullptr) device.recorder->close();
    devices_[nth(device.ordinal)] = nullptr;
    (void)device.driver->synchronize_device();
    if (!device.held) device.program.reset();
  });
}

void Session::end_recordings() {
  each([](Device& device) {
    if (device.recorder != nullptr) device.recorder->close();
  });
}

void Session::complain(const Status& status) {
  if (status.ok() || status.code() == Code::kOutOfMemory || complained_.exchange(true)) return;
  tell(LogLevel::kError, status.message());
}

std::string Session::summary(std::uint64_t opaque) {
  Counters sum;
  Bytes peak = 0;
  bool paged = false;
  LaunchCosts costs;
  each([&](Device& device) {
    Pager& pager = device.program->pager();
    const PagerStats stats = pager.stats();
    paged = paged || pager.paging();
    sum.bytes_in += stats.counters.bytes_in;
    sum.bytes_out += stats.counters.bytes_out;
    sum.page_hits += stats.counters.page_hits;
    sum.page_uses += stats.counters.page_uses;
    sum.prefetched_pages += stats.counters.prefetched_pages;
    sum.demanded_pages += stats.counters.demanded_pages;
    peak += stats.peak_device_bytes;
    costs.add(device.program->launch_costs());
  });
  if (!paged) return {};
  const double hits = sum.page_uses == 0 ? 100.0
                                         : 100.0 * static_cast<double>(sum.page_hits) /
                                               static_cast<double>(sum.page_uses);
  return text(std::fixed, std::setprecision(2), in_gib(peak), " GiB of device memory at most; ",
              in_gib(sum.bytes_in), " GiB paged in, ", in_gib(sum.bytes_out), " out; ",
              std::setprecision(1), hits, " % of page uses were hits; ", sum.prefetched_pages,
              " pages came ahead of their use, ", sum.demanded_pages, " on demand; ", opaque,
              " pieces of work not fully seen; telling of a piece took ", costs.us(0.5),
              " us in the median, ", costs.us(0.99),
              " at the 99th percentile, waits for pages aside");
}

}  // namespace penstock::engine
