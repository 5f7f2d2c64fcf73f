// SPDX-License-Identifier: Apache-2.0
// Every allocation of these tests comes here, and the Nth of a thread may be made to fail.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <cstddef>
#include <cstdlib>
#include <new>

#include "doctest/doctest.h"
#include "host_memory/failing.hpp"

namespace penstock::testing {

thread_local std::int64_t allocations_left = 0;

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (allocations_left > 0 && Shelter::depth == 0 && --allocations_left == 0) return nullptr;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes)
             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment = 1) {
  void* const got = allocate(bytes == 0 ? 1 : bytes, alignment);
  if (got == nullptr) throw std::bad_alloc();
  return got;
}

}  // namespace
}  // namespace penstock::testing

using penstock::testing::allocate_or_throw;

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return penstock::testing::allocate(bytes == 0 ? 1 : bytes, 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return penstock::testing::allocate(bytes == 0 ? 1 : bytes, 1);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, const std::nothrow_t&) noexcept { std::free(at); }
void operator delete[](void* at, const std::nothrow_t&) noexcept { std::free(at); }
