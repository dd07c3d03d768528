// SPDX-License-Identifier: Apache-2.0
// Blocks the program's signals in the library's threads: a handler would run on their stacks, between their
// locks. Signals that the processor raises there stay open.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace terrace {

// While it lives the calling thread gets no signals, and the threads it starts begin without them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int raised : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&all, raised);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace terrace
