// SPDX-License-Identifier: Apache-2.0
// Accesses to memory that may go away during use: a fenced lease, an unplugged device, a poisoned line, a
// destroyed dax device. Such an access raises SIGBUS, which would end the process; here it becomes a
// return value.
//
// Two kinds. guarded() runs loads and stores and jumps out of them: for long copies that hold nothing.
// core/os/lossy_access.h has single accesses that go on without the memory: for code that holds locks.
//
// Place     core/os; for code that must go on when memory fails: erasing, measuring, copying, shared tensors.
// Threads   Any.
// Handler   The process has one handler of SIGBUS, which may be the program's. Each outermost guard checks by a
//           system call that this library's handler is installed, and installs it in front of another one if
//           not. Any other SIGBUS goes to the earlier handler, with the mask, the stack and the flags
//           (SA_SIGINFO, SA_NODEFER, SA_RESETHAND, SA_ONSTACK) that it asked for; without an earlier handler
//           the default action follows. A handler that another thread installs during a guarded access gets
//           the fault of that access; the next guard protects again.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>

namespace terrace::os {

// Sees to it that a SIGBUS is this library's first. Before accesses of core/os/lossy_access.h.
void watch_faults();

using GuardedRange = std::span<const std::byte>;

class FaultGuard {
 public:
  // `ranges`: none stands for all memory. Not copied.
  explicit FaultGuard(std::span<const GuardedRange> ranges);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  sigjmp_buf& where() { return where_; }

 private:
  friend struct FaultHandler;
  bool covers(const void* address) const;

  sigjmp_buf where_;
  const std::span<const GuardedRange> ranges_;
  FaultGuard* const outer_;
  bool was_blocked_ = false;  // SIGBUS, in this thread: outermost guards only
};

// Runs `access`, plain loads and stores: what it constructs is not destroyed when it is cut off. false: it was,
// by a SIGBUS of this thread, at an address in one of `ranges` where there are any.
template <typename Access>
bool guarded(std::initializer_list<GuardedRange> ranges, Access&& access) {
  FaultGuard guard(std::span(ranges.begin(), ranges.size()));
  if (sigsetjmp(guard.where(), 0) != 0) return false;  // the handler puts the signal mask back
  std::forward<Access>(access)();
  return true;
}

template <typename Access>
bool guarded(Access&& access) {
  return guarded({}, std::forward<Access>(access));
}

}  // namespace terrace::os
