// SPDX-License-Identifier: Apache-2.0
// The engine behind the driver proxy: one Program a device, found by the context a call is made in
// or by the address it touches.  A status becomes the driver's own error code, so that a
// framework's retry and exception work.
#include "penstock/interpose.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "api/handles.hpp"
#include "api/interposed.hpp"
#include "base/of_thread.hpp"
#include "process/session.hpp"

namespace penstock::api {
namespace {

constexpr std::int32_t kSuccess = 0;
constexpr std::int32_t kInvalidValue = 1;
constexpr std::int32_t kOutOfMemory = 2;
constexpr std::int32_t kUnknown = 999;
constexpr std::uint64_t kPrimaryContextVersion = 7000;
constexpr std::uint64_t kMemoryInfoVersion = 3020;

// What the driver itself says is wrong: a kernel that faulted ends a context for good, and a
// program must hear that, whoever was the first to ask.
std::int32_t context_error();

std::int32_t to_cuda(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kSuccess;
    case Code::kInvalidArgument:
      return kInvalidValue;
    case Code::kOutOfMemory:
    case Code::kHostOutOfMemory:
      return kOutOfMemory;
    case Code::kDriver:
      return context_error();
    default:
      return kUnknown;
  }
}

using engine::Device;

// What the proxy said, and what is known of contexts; the devices are the session's.
struct Interposed {
  penstock_real_driver real{};
  std::array<std::atomic<void*>, engine::Session::kMostDevices> foreign{};  // no primary contexts
  std::atomic<std::uint64_t> opaque{0};
};
constinit Interposed interposed_driver;
constinit engine::Session session;
penstock_interposer table;

engine::Evicted evicted_under(std::int32_t safety) {
  if (safety == PENSTOCK_SAFETY_FAST) return engine::Evicted::kMapped;
  if (safety == PENSTOCK_SAFETY_STRICT) return engine::Evicted::kOnHost;
  return engine::Evicted::kUnmapped;
}

// From here on all work is announced; what was on its way to a stream before has got there.
void start_paging() {
  table.active.store(1);
  while (table.passing.load() != 0) std::this_thread::yield();
}

template <class Function>
Function real(const char* name, std::uint64_t version) {
  void* found = nullptr;
  std::int32_t status = 0;
  if (interposed_driver.real.get_proc_address == nullptr ||
      interposed_driver.real.get_proc_address(name, &found, static_cast<int>(version), 0,
                                              &status) != 0) {
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

// Of those calls that say so, this one neither waits nor ends a capture.
std::int32_t context_error() {
  static const auto memory_info =
      real<std::int32_t (*)(std::size_t*, std::size_t*)>("cuMemGetInfo", kMemoryInfoVersion);
  std::size_t free = 0;
  std::size_t total = 0;
  const std::int32_t error = memory_info == nullptr ? kSuccess : memory_info(&free, &total);
  return error == kSuccess ? kUnknown : error;
}

// The ordinal of the current context's device; -1: there is none.
int current_ordinal() {
  static const auto get_device = real<std::int32_t (*)(int*)>("cuCtxGetDevice", 2000);
  int ordinal = -1;
  return get_device != nullptr && get_device(&ordinal) == kSuccess ? ordinal : -1;
}

// A device's primary context, which is only asked for; null: it cannot be had.
void* primary_of(int ordinal) {
  static const auto retain =
      real<std::int32_t (*)(void**, int)>("cuDevicePrimaryCtxRetain", kPrimaryContextVersion);
  static const auto release = real<std::int32_t (*)(int)>("cuDevicePrimaryCtxRelease", 11000);
  void* primary = nullptr;
  if (retain == nullptr || release == nullptr || retain(&primary, ordinal) != kSuccess) {
    return nullptr;
  }
  release(ordinal);
  return primary;
}

// With its context, whoever asks for it first: a framework's allocator may, before any work.
Result<Device*> device_at(int ordinal) {
  PENSTOCK_ASSIGN(Device* const device, session.device(ordinal));
  if (device->context == nullptr) device->context = primary_of(ordinal);
  return device;
}

void* current_context() {
  static const auto get_current = real<std::int32_t (*)(void**)>("cuCtxGetCurrent", 4000);
  void* current = nullptr;
  return get_current != nullptr && get_current(&current) == kSuccess ? current : nullptr;
}

// The device of a context, if it is the device's primary one; null: not ours.  Of one that is not
// current, as that of another device's stream, it is known only where something of ours is there.
Device* device_of(void* context) {
  if (context == nullptr) return nullptr;
  Device* known = nullptr;
  session.each([&](Device& device) {
    if (device.context == context) known = &device;
  });
  if (known != nullptr) return known;
  for (const auto& foreign : interposed_driver.foreign) {
    if (foreign == context) return nullptr;
  }
  const int ordinal = current_ordinal();
  void* const primary = primary_of(ordinal);
  if (primary == nullptr) return nullptr;
  if (primary != context) {
    if (context != current_context()) return nullptr;
    for (auto& foreign : interposed_driver.foreign) {
      void* none = nullptr;
      if (foreign.compare_exchange_strong(none, context)) break;
    }
    return nullptr;
  }
  const Result<Device*> device = device_at(ordinal);
  if (device.ok()) return device.value();
  session.complain(device.status());
  return nullptr;
}

std::int32_t allocate(std::uint64_t bytes, void* context, std::uint64_t stream,
                      std::int32_t ordered, std::uint64_t* address) {
  Device* const device = device_of(context);
  if (device == nullptr) return PENSTOCK_PASS;
  const driver::Stream of{ordered != 0 ? stream : 0};
  const Result<Addr> got = device->program->allocator().allocate(bytes, of);
  if (!got.ok()) {
    session.complain(got.status());
    return to_cuda(got.status());
  }
  *address = got.value();
  return kSuccess;
}

// All devices and contexts may reach memory of any of them.
Status wait_for_devices() {
  Status status;
  session.each([&status](Device& device) {
    if (status.ok()) status = device.driver->synchronize_device();
  });
  return status;
}

std::int32_t release(std::uint64_t address, void* context, std::uint64_t stream,
                     std::int32_t ordered) {
  Device* const device = session.holding(address);
  if (device == nullptr) return PENSTOCK_PASS;
  const auto block = device->program->block_of(address);
  if (block.address != address) return PENSTOCK_PASS;
  engine::Allocator& allocator = device->program->allocator();
  const bool elsewhere = ordered != 0 && device_of(context) != device;
  Status status;
  if (elsewhere || (ordered == 0 && block.stays)) {
    status = wait_for_devices();  // no mark tells when what reaches it is over
  } else if (ordered != 0) {
    status = allocator.record_stream(address, driver::Stream{stream});
  } else {
    status = device->program->pager().wait_for_work();  // as cuMemFree does
  }
  if (status.ok()) status = allocator.free(address);
  session.complain(status);
  return to_cuda(status);
}

std::int32_t make_room(void* context, std::uint64_t bytes) {
  // Whatever the context, the device's memory is the same; without any, it may be any device's.
  Device* const own = device_of(context);
  const int ordinal = own != nullptr ? own->ordinal : current_ordinal();
  bool made = false;
  session.each([&](Device& device) {
    if (ordinal >= 0 && device.ordinal != ordinal) return;
    const Status status = device.program->give_back(bytes);
    session.complain(status);
    made = made || status.ok();
  });
  return made ? 1 : 0;
}

std::int32_t memory_info(void* context, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  Device* const device = device_of(context);
  if (device == nullptr) return PENSTOCK_PASS;
  const Bytes budget = device->program->budget();
  *total_bytes = device->program->options().budget;
  *free_bytes = budget - std::min(budget, device->program->held());
  return kSuccess;
}

std::int32_t block_of(std::uint64_t address, penstock_block* block) {
  Device* const device = session.holding(address);
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

std::int32_t pin(std::uint64_t address, std::int32_t, std::uint64_t* token) {
  if (token != nullptr) *token = 0;
  Device* const device = session.holding(address);
  if (device == nullptr) return kSuccess;
  Status status;
  if (token == nullptr) {
    status = device->program->stay(address);
  } else {
    const Result<engine::Pin> pinned = device->program->pin(address);
    if (pinned.ok()) *token = static_cast<std::uint64_t>(pinned.value());
    status = pinned.status();
  }
  session.complain(status);
  return to_cuda(status);
}

void unpin(std::uint64_t token) {
  session.each([token](Device& device) { device.program->unpin(engine::Pin{token}); });
}

// What lies on another device than the work is pinned there: its stream cannot be waited for.
Status announce(Device& device, const penstock_work& work) {
  struct Lists {
    std::vector<engine::TouchedAddress> touched;
    std::vector<engine::HeldAddress> held;
  };
  auto& [touched, held] = of_thread<Lists>();
  touched.clear();
  held.clear();
  bool elsewhere = false;
  for (std::uint32_t i = 0; i < work.count; ++i) {
    const penstock_touch& touch = work.touches[i];
    Device* const holder = session.holding(touch.address);
    if (holder == &device) {
      if (touch.access == PENSTOCK_ACCESS_HELD) {
        held.push_back({touch.bytes, touch.address});
        continue;
      }
      touched.push_back({touch.address, touch.bytes, (touch.access & PENSTOCK_ACCESS_WRITE) != 0,
                         (touch.access & PENSTOCK_ACCESS_GAPS) != 0,
                         (touch.access & PENSTOCK_ACCESS_AWAY) != 0});
    } else if (holder != nullptr) {
      PENSTOCK_TRY(holder->program->stay(touch.address));
      elsewhere = elsewhere || touch.access != PENSTOCK_ACCESS_HELD;
    }
  }
  if (elsewhere) {  // another device's kernels will find the addresses there
    for (engine::TouchedAddress& each : touched) each.away = true;
    for (const engine::HeldAddress& each : held) PENSTOCK_TRY(device.program->stay(each.address));
  }
  return device.program->announce(driver::Stream{work.stream}, touched, work.opaque != 0,
                                  work.function, static_cast<engine::WorkKind>(work.kind), held);
}

// In another context than a device's primary one, as a green context's work is, no mark tells when
// a stream has got to its end: what it touches stays.
Status stay(const penstock_work& work) {
  for (std::uint32_t i = 0; i < work.count; ++i) {
    Device* const holder = session.holding(work.touches[i].address);
    if (holder != nullptr) PENSTOCK_TRY(holder->program->stay(work.touches[i].address));
  }
  return {};
}

// Work that comes here before there is paging (a copy, or another device pages) is kept account of
// as well: what it touches must stay until it is given.
std::int32_t begin(penstock_work* work) {
  work->token = 0;
  if (work->captured != 0) return kSuccess;
  if (work->opaque != 0) ++interposed_driver.opaque;
  Device* const device = device_of(work->context);
  const Status status = device == nullptr ? stay(*work) : announce(*device, *work);
  session.complain(status);
  if (status.ok()) work->token = reinterpret_cast<std::uint64_t>(device);
  return to_cuda(status);
}

void end(penstock_work* work, std::int32_t) {
  if (work->token == 0) return;
  reinterpret_cast<Device*>(work->token)->program->given(driver::Stream{work->stream});
}

void context_gone(void* context) {
  for (auto& foreign : interposed_driver.foreign) {
    void* gone = context;
    foreign.compare_exchange_strong(gone, nullptr);
  }
  session.context_gone(context);
}

void stream_gone(std::uint64_t stream) {
  session.each([stream](Device& device) {
    session.complain(device.program->stream_gone(driver::Stream{stream}));
  });
}

std::int32_t summary(char* text, std::uint64_t bytes) {
  const std::string words = session.summary(interposed_driver.opaque);
  if (!words.empty()) std::snprintf(text, bytes, "%s", words.c_str());
  return words.empty() ? 0 : 1;
}

// The allocators' handles, as the rest of the library passes them on.
penstock_allocator* handle_of(Device& device) {
  static std::mutex mutex;
  // Never destroyed: a framework's own objects may go after ours, and give memory back.
  static auto& handles = *new std::unordered_map<Device*, penstock_allocator>;
  const std::lock_guard lock(mutex);
  device.held = true;
  const auto [handle, fresh] = handles.try_emplace(&device);
  if (fresh) handle->second.allocator = {std::shared_ptr<void>(), &device.program->allocator()};
  return &handle->second;
}

// Nothing is thrown into the proxy: what has no memory of the host's to go on is an error code.
template <auto function>
struct Guarded;
template <class Answer, class... Arguments, Answer (*function)(Arguments...)>
struct Guarded<function> {
  static Answer call(Arguments... arguments) noexcept {
    try {
      return function(arguments...);
    } catch (const std::bad_alloc&) {
      if constexpr (!std::is_void_v<Answer>) return kOutOfMemory;
    } catch (...) {
      if constexpr (!std::is_void_v<Answer>) return kUnknown;
    }
  }
};

}  // namespace

penstock_allocator* interposed_allocator(int ordinal) {
  if (interposed_driver.real.get_proc_address == nullptr) return nullptr;
  const Result<Device*> device = device_at(ordinal);
  if (device.ok()) return handle_of(*device.value());
  leave(device.status());
  return nullptr;
}

bool interposed() { return interposed_driver.real.get_proc_address != nullptr; }

}  // namespace penstock::api

extern "C" penstock_status penstock_interpose(const penstock_real_driver* real,
                                              const penstock_interpose_options* options,
                                              penstock_interposer** engine) {
  return guard([&]() -> Status {
    if (real == nullptr || engine == nullptr) return invalid("real or engine is null");
    if (real->version != PENSTOCK_INTERPOSE_VERSION) {
      return invalid("the proxy is of another version: reinstall penstock");
    }
    interposed_driver.real = read_struct(real);
    const penstock_interpose_options given = read_struct(options);
    engine::SessionOptions wanted;
    wanted.gpu_memory = given.gpu_memory;
    wanted.gpu_share = given.gpu_share;
    wanted.evicted = evicted_under(given.safety);
    wanted.log_level = static_cast<engine::LogLevel>(given.log_level);
    // The environment's, and it may change.
    if (given.record != nullptr) wanted.record = strdup(given.record);
    wanted.start_paging = start_paging;
    wanted.widened = [](Addr low, Addr high) {
      widen(table.window_begin, table.window_end, low, high);
    };
    session.configure(wanted);
    table.struct_size = sizeof(table);
    table.allocate = Guarded<allocate>::call;
    table.release = Guarded<release>::call;
    table.make_room = Guarded<make_room>::call;
    table.memory_info = Guarded<memory_info>::call;
    table.block_of = Guarded<block_of>::call;
    table.begin = Guarded<begin>::call;
    table.end = Guarded<end>::call;
    table.pin = Guarded<pin>::call;
    table.unpin = Guarded<unpin>::call;
    table.context_gone = Guarded<context_gone>::call;
    table.stream_gone = Guarded<stream_gone>::call;
    table.summary = Guarded<summary>::call;
    if (wanted.record != nullptr) {
      // All work is to be seen from the beginning, though nothing is paged yet.
      table.active.store(1);
      std::atexit([] { session.end_recordings(); });
    }
    *engine = &table;
    return {};
  });
}
