// Accesses to memory that may go away while it is used: a device that is unplugged, a line that is poisoned, a
// dax device that somebody destroyed. The SIGBUS that they raise would end the process; here it is an answer.
//
// Place     core/os; for who must go on when memory fails: erasing, measuring.
// Threads   Any. The first use installs a handler of SIGBUS for the process, which leaves a SIGBUS outside of
// any
//           guarded access to whoever had it before.
#pragma once

#include <setjmp.h>

#include <utility>

namespace terrace::os {

class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  sigjmp_buf& where() { return where_; }

 private:
  friend void jump_out(int signal);
  sigjmp_buf where_;
  FaultGuard* outer_;
};

// Runs `access`, plain loads and stores: what it constructs is not destroyed when it is cut off. false: it was,
// by a SIGBUS of this thread.
template <typename Access>
bool guarded(Access&& access) {
  FaultGuard guard;
  if (sigsetjmp(guard.where(), 1) != 0) return false;
  std::forward<Access>(access)();
  return true;
}

}  // namespace terrace::os
