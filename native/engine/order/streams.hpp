// SPDX-License-Identifier: Apache-2.0
// Streams as objects.  A handle says little: another stream gets it once its own is destroyed, and
// that of the per-thread default stream means another stream in each thread.  A StreamId never
// comes again.
//
// The owner tells of destroyed streams, and locks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "driver/driver.hpp"

namespace penstock::engine {

enum class StreamId : std::uint64_t {};  // never 0

class Streams {
 public:
  explicit Streams(driver::Driver& driver) : driver_(driver) {}

  // The stream that the calling thread means by the handle.
  StreamId id(driver::Stream handle) {
    const Name name = name_of(handle);
    const auto found = ids_.find(name);
    if (found != ids_.end()) return found->second;
    const StreamId made{last_ + 1};
    known_.insert_or_assign(made, name);
    ids_.emplace(name, made);
    ++last_;
    return made;
  }
  // It is about to be destroyed, or has been; StreamId{}: nobody has asked for it.
  StreamId gone(driver::Stream handle) {
    const auto found = ids_.find(name_of(handle));
    if (found == ids_.end()) return {};
    const StreamId stream = found->second;
    ids_.erase(found);
    known_.erase(stream);
    return stream;
  }
  // Whether the calling thread can give it work, and so mark a point in it: it has not been
  // destroyed, nor is it another thread's.
  [[nodiscard]] bool reachable(StreamId stream) const {
    const auto found = known_.find(stream);
    return found != known_.end() && found->second == name_of(found->second.handle);
  }
  [[nodiscard]] bool destroyed(StreamId stream) const { return !known_.contains(stream); }
  // Whether an event would mark a point of a graph there, and a wait for the stream would fail.
  [[nodiscard]] bool capturing(StreamId stream) const {
    if (!reachable(stream)) return false;
    const Result<bool> answer = driver_.capturing(known_.at(stream).handle);
    return answer.ok() && answer.value();
  }
  // Waits for all work given so far, for what no event can mark.  False, without waiting: some
  // stream captures, which that would break.
  Result<bool> wait_for_device() const {
    const bool captures =
        std::ranges::any_of(known_, [this](const auto& each) { return capturing(each.first); });
    if (captures) return false;
    PENSTOCK_TRY(driver_.synchronize_device());
    return true;
  }
  [[nodiscard]] std::size_t size() const { return known_.size(); }

 private:
  struct Name {
    driver::Stream handle{};
    std::uint64_t thread = 0;  // of a per-thread default stream
    auto operator<=>(const Name&) const = default;
  };
  // std::thread::id comes again when a thread has ended.
  static std::uint64_t this_thread() {
    static std::atomic<std::uint64_t> last{0};
    thread_local const std::uint64_t number = ++last;
    return number;
  }
  static Name name_of(driver::Stream handle) {
    return {handle, handle == driver::kPerThreadStream ? this_thread() : 0};
  }

  driver::Driver& driver_;
  std::map<Name, StreamId> ids_;
  std::unordered_map<StreamId, Name> known_;
  std::uint64_t last_ = 0;
};

}  // namespace penstock::engine
