// SPDX-License-Identifier: Apache-2.0
#include "adapters/torch_segments.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/flat_map.hpp"
#include "engine/paging/shared_budget.hpp"

namespace penstock::adapters {
namespace {

// Of the driver's interface, as c10 calls it: an adapter knows no driver of ours.
enum : int { kSuccess = 0, kOutOfMemory = 2, kOnDevice = 1 };
using AllocationHandle = std::uint64_t;
struct AllocationProperties {  // and more, which does not matter here
  int type;
  int requested_handle_types;
  int location_type;
  int location_id;
};
using Create = int (*)(AllocationHandle*, std::size_t, const AllocationProperties*,
                       unsigned long long);
using Release = int (*)(AllocationHandle);
using DriverApi = void** (*)();
using GetProcAddress = int (*)(const char*, void**, int, std::uint64_t);

constexpr std::size_t kMostEntries = 64;  // torch 2.11 has some 25

struct Segment {
  int device = 0;
  Bytes bytes = 0;
};

struct OfDevice {
  engine::SharedBudget* budget = nullptr;
  Bytes held = 0;
};

// Never destroyed, since torch frees tensors until the very end of a process.
struct Watch {
  std::mutex mutex;  // taken before a budget's own locks
  FlatMap<Segment> segments;
  std::map<int, OfDevice> devices;
  std::atomic<Create> create{nullptr};
  std::atomic<Release> release{nullptr};
};

Watch& watch() {
  static auto* const made = new Watch;
  return *made;
}

int create_segment(AllocationHandle* handle, std::size_t size, const AllocationProperties* prop,
                   unsigned long long flags) {
  Watch& all = watch();
  const Create real = all.create.load(std::memory_order_acquire);
  if (prop == nullptr || prop->location_type != kOnDevice) {
    return real(handle, size, prop, flags);
  }
  try {
    // Held throughout, so that no other budget is set between counting and creating.
    const std::lock_guard lock(all.mutex);
    OfDevice& of = all.devices[prop->location_id];
    if (of.budget != nullptr && !of.budget->take(size).ok()) return kOutOfMemory;
    const int result = real(handle, size, prop, flags);
    if (result != kSuccess) {
      if (of.budget != nullptr) (void)of.budget->put_back(size);
      return result;
    }
    all.segments.insert(*handle, {prop->location_id, size});
    of.held += size;
    return result;
  } catch (...) {  // no host memory: as if the device had none
    return kOutOfMemory;
  }
}

int release_segment(AllocationHandle handle) {
  Watch& all = watch();
  const int result = all.release.load(std::memory_order_acquire)(handle);
  if (result != kSuccess) return result;
  const std::lock_guard lock(all.mutex);
  if (const Segment* segment = all.segments.find(handle)) {
    OfDevice& of = all.devices[segment->device];
    of.held -= segment->bytes;
    if (of.budget != nullptr) (void)of.budget->put_back(segment->bytes);
    all.segments.erase(handle);
  }
  return result;
}

void* loaded(const char* library, const char* symbol) {
  void* const there = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (there == nullptr) return nullptr;
  void* const address = dlsym(there, symbol);
  dlclose(there);  // it stays: this only gives back what RTLD_NOLOAD counted
  return address;
}

// As torch asks for it: what the driver hands out may differ from what it exports.
void* handed_out(const char* name) {
  constexpr int kAsOf = 12000;
  const auto get = reinterpret_cast<GetProcAddress>(loaded("libcuda.so.1", "cuGetProcAddress"));
  void* found = nullptr;
  if (get == nullptr || get(name, &found, kAsOf, 0) != kSuccess) return nullptr;
  return found;
}

}  // namespace

bool watch_table(void** table, std::size_t words, const void* create, const void* release) {
  if (table == nullptr || create == nullptr || release == nullptr) return false;
  void** const end = table + words;
  void** const creates = std::find(table, end, create);
  void** const releases = std::find(table, end, release);
  if (creates == end || releases == end) return false;
  watch().create.store(reinterpret_cast<Create>(*creates), std::memory_order_release);
  watch().release.store(reinterpret_cast<Release>(*releases), std::memory_order_release);
  std::atomic_ref(*releases).store(reinterpret_cast<void*>(&release_segment));
  std::atomic_ref(*creates).store(reinterpret_cast<void*>(&create_segment));
  return true;
}

bool watch_segments() {
  if (watch().create.load(std::memory_order_acquire) != nullptr) return true;
  const auto get =
      reinterpret_cast<DriverApi>(loaded("libc10_cuda.so", "_ZN3c104cuda9DriverAPI3getEv"));
  if (get == nullptr) return false;
  void** const table = get();
  return watch_table(table, kMostEntries, handed_out("cuMemCreate"), handed_out("cuMemRelease")) ||
         watch_table(table, kMostEntries, loaded("libcuda.so.1", "cuMemCreate"),
                     loaded("libcuda.so.1", "cuMemRelease"));
}

Status count_segments_in(int device, engine::SharedBudget* budget) {
  const std::lock_guard lock(watch().mutex);
  OfDevice& of = watch().devices[device];
  if (of.budget == budget) return {};
  if (budget != nullptr) PENSTOCK_TRY(budget->take(of.held));
  if (of.budget != nullptr) (void)of.budget->put_back(of.held);
  of.budget = budget;
  return {};
}

}  // namespace penstock::adapters
