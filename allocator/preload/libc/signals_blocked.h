// SPDX-License-Identifier: Apache-2.0
// Sections in which the calling thread's signal handlers do not run: a handler that forked there would wait for
// a lock of its own thread.
#pragma once

#include <signal.h>

namespace terrace::preload {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigfillset(&all_);
    block();
  }
  ~SignalsBlocked() { unblock(); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  void block() { ::pthread_sigmask(SIG_SETMASK, &all_, &before_); }
  void unblock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t all_, before_;
};

}  // namespace terrace::preload
