// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/interrupts.h"

namespace terrace::bench {
namespace {

volatile sig_atomic_t interrupted = 0;

void note_interrupt(int) {
  interrupted = 1;
}

}  // namespace

bool was_interrupted() {
  return interrupted != 0;
}

InterruptsCaught::InterruptsCaught() {
  struct sigaction action {};
  action.sa_handler = note_interrupt;
  ::sigaction(SIGINT, &action, &before_[0]);
  ::sigaction(SIGTERM, &action, &before_[1]);
}

InterruptsCaught::~InterruptsCaught() {
  ::sigaction(SIGINT, &before_[0], nullptr);
  ::sigaction(SIGTERM, &before_[1], nullptr);
}

}  // namespace terrace::bench
