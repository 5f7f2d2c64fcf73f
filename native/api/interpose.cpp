// SPDX-License-Identifier: Apache-2.0
// The engine behind the driver proxy: one Program a device, found by the context a call is made in
// or by the address it touches.  A status becomes the driver's own error code, so that a
// framework's retry and exception work.
#include "penstock/interpose.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "api/handles.hpp"
#include "api/interposed.hpp"
#include "engine/program.hpp"

namespace penstock::api {
namespace {

constexpr std::int32_t kSuccess = 0;
constexpr std::int32_t kOutOfMemory = 2;
constexpr std::int32_t kUnknown = 999;
constexpr int kMostDevices = 64;
constexpr std::uint64_t kPrimaryContextVersion = 7000;

std::int32_t to_cuda(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kSuccess;
    case Code::kOutOfMemory:
    case Code::kHostOutOfMemory:
      return kOutOfMemory;
    default:
      return kUnknown;
  }
}

// One device of the program.  Never destroyed: memory is used until the process ends.
struct Device {
  std::unique_ptr<driver::Driver> driver;
  std::unique_ptr<engine::WorkRecorder> recorder;
  std::unique_ptr<engine::Program> program;
  penstock_allocator allocator;
  std::atomic<void*> context{nullptr};
  int ordinal = 0;
};

struct Session {
  penstock_interpose_options options{};
  const char* record = nullptr;  // the file to record in
  penstock_real_driver real{};
  std::mutex mutex;  // all but reading `devices`
  std::array<std::atomic<Device*>, kMostDevices> devices{};
  std::atomic<int> count{0};  // of devices, in the order of their making
  std::array<std::atomic<Device*>, kMostDevices> made{};
  std::array<std::atomic<void*>, kMostDevices> foreign{};  // contexts that are no primary ones
  std::atomic<std::uint64_t> opaque{0};
  std::atomic<bool> complained{false};
};
constinit Session session;
penstock_interposer table;

void complain(const Status& status) {
  if (status.ok() || status.code() == Code::kOutOfMemory || session.complained.exchange(true)) {
    return;
  }
  if (session.options.log_level >= PENSTOCK_LOG_ERROR) {
    std::fprintf(stderr, "penstock: %s\n", status.message().c_str());
  }
}

Bytes host_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  // A fifth is the system's, and the program's own.
  return static_cast<Bytes>(info.totalram) * info.mem_unit / 5 * 4;
}

Bytes budget_for(driver::Driver& device) {
  const Bytes total = device.info().total;
  if (session.options.gpu_memory != 0) return std::min<Bytes>(session.options.gpu_memory, total);
  if (session.options.gpu_share > 0) {
    return static_cast<Bytes>(static_cast<double>(total) * session.options.gpu_share);
  }
  // What is free, less what kernels' code and the driver itself will still take.
  const auto memory = device.memory_info();
  const Bytes free = memory.ok() ? memory.value().free : total;
  return free - std::min<Bytes>(free / 16, kGiB);
}

engine::Evicted evicted_under(std::int32_t safety) {
  switch (safety) {
    case PENSTOCK_SAFETY_FAST:
      return engine::Evicted::kMapped;
    case PENSTOCK_SAFETY_STRICT:
      return engine::Evicted::kOnHost;
    default:
      return engine::Evicted::kProven;
  }
}

// From here on all work is announced; what was on its way to a stream before has got there.
void start_paging(Device* device) {
  table.active.store(1);
  while (table.passing.load() != 0) std::this_thread::yield();
  if (session.options.log_level >= PENSTOCK_LOG_INFO) {
    std::fprintf(stderr, "penstock: GPU %d: %.1f GiB are full, paging begins\n", device->ordinal,
                 static_cast<double>(device->program->options().budget) / kGiB);
  }
}

void widen_window() {
  Addr begin = 0;
  Addr end = 0;
  for (int i = 0; i < session.count; ++i) {
    const auto [low, high] = session.made[static_cast<std::size_t>(i)].load()->program->window();
    if (low == high) continue;
    begin = begin == 0 ? low : std::min(begin, low);
    end = std::max(end, high);
  }
  // The wider end first: a reader in between sees a window that is too wide or not there yet.
  if (end > table.window_end) table.window_end = end;
  if (begin != 0 && (table.window_begin == 0 || begin < table.window_begin)) {
    table.window_begin = begin;
  }
}

void say_recording(const Status& status) {
  if (session.options.log_level >= PENSTOCK_LOG_ERROR) {
    std::fprintf(stderr, "penstock: %s\n", status.message().c_str());
  }
}

// Without a file to record in the program runs as it would have.
std::unique_ptr<engine::WorkRecorder> make_recorder(const driver::Driver& device, Bytes budget) {
  if (session.record == nullptr) return nullptr;
  engine::WorkRecorderOptions options;
  options.path = session.record;
  options.suffix = '.' + std::to_string(getpid()) + ".gpu" + std::to_string(device.info().ordinal);
  options.device = device.info().ordinal;
  options.budget = budget;
  options.device_bytes = device.info().total;
  options.failed = say_recording;
  auto recorder = engine::WorkRecorder::open(options);
  if (!recorder.ok()) {
    const Status status = recorder.status();
    say_recording({status.code(), "nothing is recorded: " + status.message()});
    return nullptr;
  }
  if (session.options.log_level >= PENSTOCK_LOG_INFO) {
    std::fprintf(stderr, "penstock: GPU %d is recorded in %s\n", options.device,
                 recorder.value()->path().c_str());
  }
  return std::move(recorder).value();
}

void end_recordings() {
  for (int i = 0; i < session.count; ++i) {
    if (auto& recorder = session.made[static_cast<std::size_t>(i)].load()->recorder) {
      recorder->close();
    }
  }
}

Result<Device*> make_device(int ordinal) {
  auto device = std::make_unique<Device>();
  PENSTOCK_ASSIGN(device->driver, driver::open_cuda_driver(ordinal));
  device->ordinal = ordinal;
  engine::ProgramOptions options;
  options.budget = budget_for(*device->driver);
  options.host_bytes = host_memory();
  options.evicted = evicted_under(session.options.safety);
  Device* const raw = device.get();
  options.start_paging = [raw] { start_paging(raw); };
  options.widened = widen_window;
  device->recorder = make_recorder(*device->driver, options.budget);
  options.recorder = device->recorder.get();
  if (options.evicted == engine::Evicted::kOnHost && !device->driver->info().host_chunks &&
      session.options.log_level >= PENSTOCK_LOG_WARNING) {
    std::fprintf(stderr,
                 "penstock: GPU %d cannot map host memory into ranges: under strict an access that "
                 "was not seen faults\n",
                 ordinal);
  }
  PENSTOCK_ASSIGN(device->program, engine::Program::create(*device->driver, options));
  device->allocator.allocator = {std::shared_ptr<void>(), &device->program->allocator()};
  for (int i = 0; i < session.count; ++i) {
    Device& other = *session.made[static_cast<std::size_t>(i)].load();
    for (const Status& status : {other.program->pager().share_with(ordinal),
                                 device->program->pager().share_with(other.ordinal)}) {
      if (status.ok() || status.code() == Code::kUnsupported) continue;
      if (session.options.log_level >= PENSTOCK_LOG_WARNING) {
        std::fprintf(stderr, "penstock: GPUs %d and %d do not reach each other's memory: %s\n",
                     other.ordinal, ordinal, status.message().c_str());
      }
    }
  }
  return device.release();
}

Result<Device*> find_or_make(int ordinal) {
  if (ordinal < 0 || ordinal >= kMostDevices) {
    return Status(Code::kInvalidArgument, "there is no GPU " + std::to_string(ordinal));
  }
  auto& slot = session.devices[static_cast<std::size_t>(ordinal)];
  if (Device* there = slot.load(std::memory_order_acquire)) return there;
  const std::lock_guard lock(session.mutex);
  if (Device* there = slot.load()) return there;
  PENSTOCK_ASSIGN(Device * made, make_device(ordinal));
  session.made[static_cast<std::size_t>(session.count.load())] = made;
  ++session.count;
  slot.store(made, std::memory_order_release);
  return made;
}

template <class Function>
Function real(const char* name, std::uint64_t version) {
  void* found = nullptr;
  std::int32_t status = 0;
  if (session.real.get_proc_address == nullptr ||
      session.real.get_proc_address(name, &found, static_cast<int>(version), 0, &status) != 0) {
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

// The device of a context, if it is the device's primary one; null: not ours.
Device* device_of(void* context) {
  for (int i = 0; i < session.count; ++i) {
    Device* const device = session.made[static_cast<std::size_t>(i)].load();
    if (device->context == context) return device;
  }
  for (const auto& foreign : session.foreign) {
    if (foreign == context) return nullptr;
  }
  int ordinal = -1;
  static const auto get_device = real<std::int32_t (*)(int*)>("cuCtxGetDevice", 2000);
  static const auto retain =
      real<std::int32_t (*)(void**, int)>("cuDevicePrimaryCtxRetain", kPrimaryContextVersion);
  static const auto release = real<std::int32_t (*)(int)>("cuDevicePrimaryCtxRelease", 11000);
  void* primary = nullptr;
  if (get_device == nullptr || retain == nullptr || get_device(&ordinal) != kSuccess ||
      retain(&primary, ordinal) != kSuccess) {
    return nullptr;
  }
  if (primary != context) {
    if (release != nullptr) release(ordinal);
    for (auto& foreign : session.foreign) {
      void* none = nullptr;
      if (foreign.compare_exchange_strong(none, context)) break;
    }
    return nullptr;
  }
  const Result<Device*> device = find_or_make(ordinal);
  if (!device.ok()) {
    complain(device.status());
    return nullptr;
  }
  device.value()->context = context;
  return device.value();
}

Device* device_at(Addr address) {
  for (int i = 0; i < session.count; ++i) {
    Device* const device = session.made[static_cast<std::size_t>(i)].load();
    const auto [begin, end] = device->program->window();
    if (address >= begin && address < end) return device;
  }
  return nullptr;
}

std::int32_t allocate(std::uint64_t bytes, void* context, std::uint64_t stream,
                      std::int32_t ordered, std::uint64_t* address) {
  Device* const device = device_of(context);
  if (device == nullptr) return PENSTOCK_PASS;
  const driver::Stream of{ordered != 0 ? stream : 0};
  const Result<Addr> got = device->program->allocator().allocate(bytes, of);
  if (!got.ok()) {
    complain(got.status());
    return to_cuda(got.status());
  }
  *address = got.value();
  return kSuccess;
}

std::int32_t release(std::uint64_t address, void*, std::uint64_t stream, std::int32_t ordered) {
  Device* const device = device_at(address);
  if (device == nullptr || device->program->block_of(address).address != address) {
    return PENSTOCK_PASS;
  }
  engine::Allocator& allocator = device->program->allocator();
  Status status;
  if (ordered != 0) {
    status = allocator.record_stream(address, driver::Stream{stream});
  } else {
    status = device->driver->synchronize_device();  // as cuMemFree does
  }
  if (status.ok()) status = allocator.free(address);
  complain(status);
  return to_cuda(status);
}

std::int32_t make_room(void* context, std::uint64_t bytes) {
  Device* const device = device_of(context);
  if (device == nullptr) return 0;
  const Status status = device->program->give_back(bytes);
  complain(status);
  return status.ok() ? 1 : 0;
}

std::int32_t memory_info(void* context, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  Device* const device = device_of(context);
  if (device == nullptr) return PENSTOCK_PASS;
  const Bytes budget = device->program->options().budget;
  *total_bytes = budget;
  *free_bytes = budget - std::min(budget, device->program->held());
  return kSuccess;
}

std::int32_t block_of(std::uint64_t address, penstock_block* block) {
  Device* const device = device_at(address);
  if (device == nullptr) return PENSTOCK_PASS;
  const auto found = device->program->block_of(address);
  if (found.bytes == 0) return PENSTOCK_PASS;
  penstock_block out{};
  out.base = found.address;
  out.bytes = found.bytes;
  out.id = found.id;
  out.context = device->context;
  out.device = device->ordinal;
  return to_cuda(write_struct(out, block));
}

void pin(std::uint64_t address, std::int32_t delta, std::int32_t) {
  if (Device* const device = device_at(address)) complain(device->program->pin(address, delta));
}

// What lies on another device than the work is pinned there: its stream cannot be waited for.
Status announce(Device& device, const penstock_work& work) {
  thread_local std::vector<engine::TouchedAddress> touched;
  thread_local std::vector<Addr> held;
  touched.clear();
  held.clear();
  const auto [begin, end] = device.program->window();
  for (std::uint32_t i = 0; i < work.count; ++i) {
    const penstock_touch& touch = work.touches[i];
    if (touch.address >= begin && touch.address < end) {
      if (touch.access == PENSTOCK_ACCESS_HELD) {
        held.push_back(touch.address);
        continue;
      }
      touched.push_back({touch.address, touch.bytes, (touch.access & PENSTOCK_ACCESS_WRITE) != 0});
    } else if (Device* const other = device_at(touch.address)) {
      PENSTOCK_TRY(other->program->pin(touch.address, 1));
    }
  }
  if (work.kind == PENSTOCK_WORK_COPY && touched.size() == 1 && touched.front().written) {
    device.program->hold(touched.front().address, touched.front().bytes, held);
  }
  return device.program->announce(driver::Stream{work.stream}, touched, work.opaque != 0,
                                  work.function, static_cast<engine::WorkKind>(work.kind));
}

// Work that comes here before there is paging (a copy, or another device pages) is kept account of
// as well: what it touches must stay until it is given.
std::int32_t begin(penstock_work* work) {
  work->token = 0;
  if (work->captured != 0) return kSuccess;
  if (work->opaque != 0) ++session.opaque;
  Device* const device = device_of(work->context);
  if (device == nullptr) return kSuccess;
  const Status status = announce(*device, *work);
  complain(status);
  if (status.ok()) work->token = reinterpret_cast<std::uint64_t>(device);
  return to_cuda(status);
}

void end(penstock_work* work, std::int32_t) {
  if (work->token == 0) return;
  reinterpret_cast<Device*>(work->token)->program->given(driver::Stream{work->stream});
}

void context_gone(void*) {}

void stream_gone(std::uint64_t stream) {
  for (int i = 0; i < session.count; ++i) {
    complain(session.made[static_cast<std::size_t>(i)].load()->program->pager().close_stream(
        driver::Stream{stream}));
  }
}

std::int32_t summary(char* text, std::uint64_t bytes) {
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  std::uint64_t hits = 0;
  std::uint64_t uses = 0;
  std::uint64_t plans = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t demanded = 0;
  std::uint64_t peak = 0;
  bool paged = false;
  for (int i = 0; i < session.count; ++i) {
    engine::Pager& pager = session.made[static_cast<std::size_t>(i)].load()->program->pager();
    const engine::PagerStats stats = pager.stats();
    paged = paged || pager.paging();
    in += stats.counters.bytes_in;
    out += stats.counters.bytes_out;
    hits += stats.counters.page_hits;
    uses += stats.counters.page_uses;
    plans += stats.counters.plans;
    mismatches += stats.counters.mismatches;
    demanded += stats.counters.demanded_pages;
    peak += stats.peak_device_bytes;
  }
  std::snprintf(text, bytes,
                "%.2f GiB of device memory at most; %.2f GiB paged in, %.2f out; %.1f %% of page "
                "uses were hits; %llu plans, %llu uses against them, %llu pages on demand; %llu "
                "pieces of work not fully seen",
                static_cast<double>(peak) / kGiB, static_cast<double>(in) / kGiB,
                static_cast<double>(out) / kGiB,
                uses == 0 ? 100.0 : 100.0 * static_cast<double>(hits) / static_cast<double>(uses),
                static_cast<unsigned long long>(plans), static_cast<unsigned long long>(mismatches),
                static_cast<unsigned long long>(demanded),
                static_cast<unsigned long long>(session.opaque.load()));
  return paged ? 1 : 0;
}

}  // namespace

penstock_allocator* interposed_allocator(int ordinal) {
  if (session.real.get_proc_address == nullptr) return nullptr;
  const Result<Device*> device = find_or_make(ordinal);
  if (device.ok()) return &device.value()->allocator;
  leave(device.status());
  return nullptr;
}

bool interposed() { return session.real.get_proc_address != nullptr; }

}  // namespace penstock::api

extern "C" penstock_status penstock_interpose(const penstock_real_driver* real,
                                              const penstock_interpose_options* options,
                                              penstock_interposer** engine) {
  using namespace penstock;       // NOLINT(google-build-using-namespace)
  using namespace penstock::api;  // NOLINT(google-build-using-namespace)
  return guard([&]() -> Status {
    if (real == nullptr || engine == nullptr) {
      return {Code::kInvalidArgument, "real or engine is null"};
    }
    if (real->version != PENSTOCK_INTERPOSE_VERSION) {
      return {Code::kInvalidArgument, "the proxy is of another version: reinstall penstock"};
    }
    session.real = read_struct(real);
    session.options = read_struct(options);
    table.struct_size = sizeof(table);
    table.allocate = allocate;
    table.release = release;
    table.make_room = make_room;
    table.memory_info = memory_info;
    table.block_of = block_of;
    table.begin = begin;
    table.end = end;
    table.pin = pin;
    table.context_gone = context_gone;
    table.stream_gone = stream_gone;
    table.summary = summary;
    if (session.options.record != nullptr) {
      session.record = strdup(session.options.record);  // the environment's, and it may change
      // All work is to be seen from the beginning, though nothing is paged yet.
      table.active.store(1);
      std::atexit(end_recordings);
    }
    *engine = &table;
    return {};
  });
}
