// SPDX-License-Identifier: Apache-2.0
// Programs that take turns on one thread: each has a stack of its own, and goes on where it stopped. Ten
// nanoseconds a turn, so that a test can change turns at every access to memory. x86-64 only.
//
// Threads   One.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace terrace::coherence {

class Fiber {
 public:
  // `body` runs when resume() is first called; what it throws ends the process.
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // must have finished, or never have begun
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  // from outside: goes on until the body calls pause() or returns
  void pause();   // from the body
  bool finished() const { return finished_; }

 private:
  static void enter();
  void run();

  static constexpr size_t stack_bytes = 512 * 1024;
  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  void* inside_ = nullptr;  // stack pointers while the other side runs
  void* outside_ = nullptr;
  void* fake_inside_ = nullptr;  // the address sanitizer's
  const void* outside_stack_ = nullptr;
  size_t outside_bytes_ = 0;
  bool begun_ = false;
  bool finished_ = false;
};

}  // namespace terrace::coherence
