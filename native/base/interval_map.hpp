// SPDX-License-Identifier: Apache-2.0
// A map from disjoint half-open intervals [begin, end) of addresses to values, for finding what an
// interior pointer belongs to.  O(log n); the caller locks.
#pragma once

#include <map>
#include <utility>

#include "base/units.hpp"

namespace penstock {

template <class T>
class IntervalMap {
 public:
  // False, and no change, when [begin, end) is empty or overlaps what is there.
  bool insert(Addr begin, Addr end, T value) {
    if (begin >= end) return false;
    auto next = entries_.lower_bound(begin);
    if (next != entries_.end() && next->first < end) return false;
    if (next != entries_.begin() && std::prev(next)->second.end > begin) return false;
    entries_.emplace(begin, Entry{end, std::move(value)});
    return true;
  }

  // The value whose interval holds `address`, or null.
  const T* find(Addr address) const { return const_cast<IntervalMap*>(this)->find(address); }
  T* find(Addr address) {
    auto next = entries_.upper_bound(address);
    if (next == entries_.begin()) return nullptr;
    Entry& entry = std::prev(next)->second;
    return address < entry.end ? &entry.value : nullptr;
  }

  template <class Visit>
  void each(const Visit& visit) const {
    for (const auto& [begin, entry] : entries_) visit(entry.value);
  }

  bool erase(Addr begin) { return entries_.erase(begin) == 1; }

 private:
  struct Entry {
    Addr end;
    T value;
  };
  std::map<Addr, Entry> entries_;
};

}  // namespace penstock
