// SPDX-License-Identifier: Apache-2.0
#include "adapters/torch_allocator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapters/torch_errors.hpp"
#include "adapters/torch_segments.hpp"
#include "api/handles.hpp"
#include "api/interposed.hpp"
#include "engine/paging/shared_budget.hpp"

namespace penstock::adapters {
namespace {

constexpr int kMostDevices = 128;

struct OfDevice {
  penstock_device* device = nullptr;           // what the allocator is on, and
  engine::BudgetedDriver* budgeted = nullptr;  // its driver; neither under a proxy
  engine::SharedBudget* budget = nullptr;      // where that counts
};

// Never destroyed, since torch frees tensors until the very end of a process.
struct State {
  std::mutex mutex;  // all but reading `allocators`
  std::array<std::atomic<penstock_allocator*>, kMostDevices> allocators{};
  std::array<OfDevice, kMostDevices> devices{};
  std::atomic<penstock_torch_observer> observer{nullptr};
  penstock_device_options device_options{};
  penstock_allocator_options allocator_options{};
  double budget_share = 0;
  std::uint64_t history_capacity = 0;
  penstock_context_callback history_context = nullptr;
  void* history_user = nullptr;
};
constinit State state;

std::uint64_t as_number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

std::uint64_t budget_of(penstock_device* device, double share) {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  if (penstock_memory(device, &free, &total) != PENSTOCK_OK) return 0;
  return static_cast<std::uint64_t>(static_cast<double>(total) * share);
}

// torch copies between GPUs that reach each other without asking the allocator, which mapped memory
// forbids unless access was given.  Only a program that uses several pays for it.
penstock_status share_with_others(penstock_device* device, int ordinal) {
  for (int other = 0; other < kMostDevices; ++other) {
    penstock_device* const there = state.devices[nth(other)].device;
    if (there == nullptr || other == ordinal) continue;
    for (const penstock_status status :
         {penstock_share(there, ordinal), penstock_share(device, other)}) {
      if (status != PENSTOCK_OK && status != PENSTOCK_UNSUPPORTED) return status;
    }
  }
  return PENSTOCK_OK;
}

// Under the lock.  NULL, with the reason in penstock_last_error(), where it cannot be made.
penstock_allocator* make_allocator(int ordinal) {
  // There the budget is the process's, and its memory is paged.
  if (api::interposed()) return api::interposed_allocator(ordinal);
  OfDevice& own = state.devices[nth(ordinal)];
  penstock_device_options wanted = state.device_options;
  wanted.struct_size = sizeof(wanted);
  wanted.ordinal = ordinal;
  penstock_device* device = nullptr;
  if (penstock_open(&wanted, &device) != PENSTOCK_OK) return nullptr;
  penstock_allocator_options options = state.allocator_options;
  options.struct_size = sizeof(options);
  if (options.budget == 0 && state.budget_share > 0) {
    options.budget = budget_of(device, state.budget_share);
  }
  // The driver beneath lives as long as the process, like all of this.
  auto budgeted = std::make_unique<engine::BudgetedDriver>(*device->driver.release());
  engine::BudgetedDriver* const counted = budgeted.get();
  device->driver = std::move(budgeted);
  (void)counted->count_in(own.budget);
  penstock_allocator* allocator = nullptr;
  if (share_with_others(device, ordinal) != PENSTOCK_OK ||
      penstock_allocator_create(device, &options, &allocator) != PENSTOCK_OK) {
    const std::string reason = penstock_last_error();
    penstock_close(device);
    api::leave(Status(Code::kInternal, reason));
    return nullptr;
  }
  if (state.history_capacity != 0) {
    penstock_allocator_record_history(allocator, state.history_capacity, state.history_context,
                                      state.history_user);
  }
  own.device = device;
  own.budgeted = counted;
  return allocator;
}

penstock_allocator* find_or_make(int device) {
  if (penstock_allocator* const there = allocator_of(device)) return there;
  if (device < 0 || device >= kMostDevices) {
    api::leave(invalid("there is no GPU ", device));
    return nullptr;
  }
  const std::lock_guard lock(state.mutex);
  auto& slot = state.allocators[nth(device)];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(make_allocator(device), std::memory_order_release);
  }
  return slot.load(std::memory_order_relaxed);
}

[[noreturn]] void raise_last_error() {
  raise_runtime_error(std::string("Penstock: ") + penstock_last_error());
}

// torch's own first words, by which batch-size searches know the error, then the allocator's.
[[noreturn]] void report_out_of_memory(penstock_allocator* allocator, std::uint64_t bytes,
                                       int device) {
  const std::string text = std::string("CUDA out of memory. ") + penstock_last_error();
  if (const auto observer = state.observer.load()) {
    penstock_allocator_stats stats{};
    stats.struct_size = sizeof(stats);
    penstock_allocator_get_stats(allocator, &stats);
    observer(device, bytes, stats.device_total, stats.device_free);
  }
  raise_out_of_memory(text);
}

// Call `use` for each allocator there is until it returns true.
template <class Use>
void for_each_allocator(const Use& use) {
  for (const auto& slot : state.allocators) {
    penstock_allocator* const allocator = slot.load(std::memory_order_acquire);
    if (allocator != nullptr && use(allocator)) return;
  }
}

// The block that holds the address; its size is 0 if there is none.
std::pair<std::uint64_t, std::uint64_t> block_around(penstock_allocator* allocator,
                                                     std::uint64_t address) {
  const std::vector<engine::PieceInfo> pieces = (**allocator).pieces();
  std::uint64_t block = 0;
  for (const engine::PieceInfo& piece : pieces) {
    const std::uint64_t begin = piece.block + piece.block_offset;
    if (piece.block != 0 && address >= begin && address - begin < piece.bytes) block = piece.block;
  }
  std::uint64_t size = 0;
  for (const engine::PieceInfo& piece : pieces) {
    if (block != 0 && piece.block == block) size += piece.bytes;
  }
  return {block, size};
}

}  // namespace

penstock_allocator* allocator_of(int device) {
  if (device < 0 || device >= kMostDevices) return nullptr;
  return state.allocators[nth(device)].load(std::memory_order_acquire);
}

penstock_allocator* need_allocator(int device) {
  penstock_allocator* const allocator = find_or_make(device);
  if (allocator == nullptr) raise_last_error();
  return allocator;
}

}  // namespace penstock::adapters

using namespace penstock::adapters;  // NOLINT(google-build-using-namespace)

penstock_status penstock_torch_configure(const penstock_torch_options* options) {
  return api::guard([&]() -> Status {
    const std::lock_guard lock(state.mutex);
    bool any = false;
    for_each_allocator([&](penstock_allocator*) { return any = true; });
    if (any) return invalid("memory has been allocated with other options already");
    const penstock_torch_options from = api::read_struct(options);
    state.device_options = api::read_struct(from.device);
    state.allocator_options = api::read_struct(from.allocator);
    state.budget_share = from.budget_share;
    find_torch_errors();
    return {};
  });
}

penstock_status penstock_torch_allocator(int32_t device, penstock_allocator** allocator) {
  return api::guard([&]() -> Status {
    if (allocator == nullptr) return invalid("allocator is null");
    *allocator = allocator_of(device);
    return {};
  });
}

penstock_status penstock_torch_record_history(uint64_t capacity, penstock_context_callback context,
                                              void* user) {
  const std::lock_guard lock(state.mutex);
  state.history_capacity = capacity;
  state.history_context = context;
  state.history_user = user;
  penstock_status status = PENSTOCK_OK;
  for_each_allocator([&](penstock_allocator* allocator) {
    status = penstock_allocator_record_history(allocator, capacity, context, user);
    return status != PENSTOCK_OK;
  });
  return status;
}

penstock_status penstock_torch_count_in(int32_t device, penstock_budget* budget) {
  return api::guard([&]() -> Status {
    if (device < 0 || device >= kMostDevices) return invalid("there is no GPU ", device);
    const std::lock_guard lock(state.mutex);
    OfDevice& own = state.devices[nth(device)];
    engine::SharedBudget* const shared = budget == nullptr ? nullptr : &budget->budget;
    if (own.budgeted != nullptr) PENSTOCK_TRY(own.budgeted->count_in(shared));
    own.budget = shared;
    return count_segments_in(device, shared);
  });
}

int32_t penstock_torch_watch_segments(void) {
  return !api::interposed() && watch_segments() ? 1 : 0;
}

int32_t penstock_torch_error_kind(void) { return static_cast<int32_t>(error_kind()); }

void penstock_torch_observe_out_of_memory(penstock_torch_observer observer) {
  state.observer.store(observer);
}

void* penstock_torch_alloc(std::size_t size, int device, CUstream_st* stream) {
  if (size == 0) return nullptr;
  penstock_allocator* const allocator = need_allocator(device);
  std::uint64_t address = 0;
  const penstock_status status = penstock_allocate(allocator, size, as_number(stream), &address);
  if (status == PENSTOCK_OK) return reinterpret_cast<void*>(address);
  if (status != PENSTOCK_OUT_OF_MEMORY) raise_last_error();
  report_out_of_memory(allocator, size, device);
}

void* penstock_torch_alloc_or_null(std::size_t size, int device, CUstream_st* stream) {
  penstock_allocator* const allocator = size == 0 ? nullptr : find_or_make(device);
  std::uint64_t address = 0;
  if (allocator != nullptr) penstock_allocate(allocator, size, as_number(stream), &address);
  return reinterpret_cast<void*>(address);
}

// A failure has no way out of a destructor.  It means that the driver no longer answers, which the
// program's next call to it will say.
void penstock_torch_free(void* address, std::size_t, int device, CUstream_st*) {
  penstock_allocator* const allocator = allocator_of(device);
  if (address != nullptr && allocator != nullptr) penstock_free(allocator, as_number(address));
}

// torch tells how many devices there are; each gets its allocator when it is first needed.
void penstock_torch_init(int) {}

void penstock_torch_reset() {
  for_each_allocator([](penstock_allocator* allocator) {
    if (penstock_empty_cache(allocator) != PENSTOCK_OK) raise_last_error();
    return false;
  });
}

// Never more than the budget it was configured with: what a library sets later is a further limit.
void penstock_torch_memory_fraction(double fraction, int device) {
  penstock_allocator* const allocator = need_allocator(device);
  if (api::interposed()) return;  // what is beyond the budget is paged
  penstock_device* const of = state.devices[nth(device)].device;
  std::uint64_t budget = budget_of(of, fraction);
  const std::uint64_t configured = state.allocator_options.budget;
  if (configured != 0) {
    budget = std::min(budget, configured);
  } else if (state.budget_share > 0) {
    budget = std::min(budget, budget_of(of, state.budget_share));
  }
  if (penstock_allocator_set_budget(allocator, budget) != PENSTOCK_OK) raise_last_error();
}

void* penstock_torch_base_alloc(void* address, std::size_t* size) {
  std::uint64_t base = 0;
  for_each_allocator([&](penstock_allocator* allocator) {
    const auto [block, bytes] = block_around(allocator, as_number(address));
    if (block == 0) return false;
    base = block;
    if (size != nullptr) *size = bytes;
    return true;
  });
  if (base == 0) raise_runtime_error("Penstock: the address is in none of its blocks");
  return reinterpret_cast<void*>(base);
}

// torch does not say which device; and what came from elsewhere (from_blob, DLPack) is not ours.
void penstock_torch_record_stream(void* address, CUstream_st* stream) {
  if (address == nullptr) return;
  for_each_allocator([&](penstock_allocator* allocator) {
    return penstock_record_stream(allocator, as_number(address), as_number(stream)) == PENSTOCK_OK;
  });
}
