// SPDX-License-Identifier: Apache-2.0
#include "adapters/torch_segments.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

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

// Never destroyed, since torch frees tensors until the very end of a process.
struct Watch {
  std::mutex mutex;                               // of the map; what is in it stays
  std::map<int, engine::CountedMemory> segments;  // by device
  std::atomic<Create> create{nullptr};
  std::atomic<Release> release{nullptr};
};

Watch& watch() {
  static auto* const made = new Watch;
  return *made;
}

engine::CountedMemory& segments_of(int device) {
  const std::lock_guard lock(watch().mutex);
  return watch().segments[device];
}

int create_segment(AllocationHandle* handle, std::size_t size, const AllocationProperties* prop,
                   unsigned long long flags) {
  const Create real = watch().create.load(std::memory_order_acquire);
  if (prop == nullptr || prop->location_type != kOnDevice) return real(handle, size, prop, flags);
  int result = kOutOfMemory;  // as if the device had none, where the budget or the host has not
  try {
    (void)segments_of(prop->location_id).make(size, [&]() -> Result<AllocationHandle> {
      result = real(handle, size, prop, flags);
      if (result != kSuccess) return Status(Code::kDriver, "no memory was made");
      return *handle;
    });
  } catch (...) {
    return kOutOfMemory;
  }
  return result;
}

int release_segment(AllocationHandle handle) {
  const int result = watch().release.load(std::memory_order_acquire)(handle);
  if (result != kSuccess) return result;
  const std::lock_guard lock(watch().mutex);
  for (auto& [device, segments] : watch().segments) segments.gone(handle);
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
  return segments_of(device).count_in(budget);
}

}  // namespace penstock::adapters
