// SPDX-License-Identifier: Apache-2.0
// An object of each thread's, made when it is first asked for.  Unlike a thread_local object it can
// be asked for again when those of the thread have gone: a program may give work from atexit(), or
// from a destructor.
//
// Thread rule: any thread.
#pragma once

#include <utility>

namespace penstock {

template <class T>
T& of_thread() {
  thread_local T* there = nullptr;
  struct End {
    ~End() { delete std::exchange(there, nullptr); }
  };
  thread_local End end;
  static_cast<void>(end);
  if (there == nullptr) there = new T;
  return *there;
}

}  // namespace penstock
