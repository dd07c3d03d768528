// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as something to look at now and then.
#pragma once

#include <signal.h>

namespace terrace::bench {

// While this lives SIGINT and SIGTERM are noted, so that a bench ends what it started and cleans up.
class InterruptsCaught {
 public:
  InterruptsCaught();
  ~InterruptsCaught();
  InterruptsCaught(const InterruptsCaught&) = delete;
  InterruptsCaught& operator=(const InterruptsCaught&) = delete;

 private:
  struct sigaction before_[2] = {};
};

bool was_interrupted();

}  // namespace terrace::bench
