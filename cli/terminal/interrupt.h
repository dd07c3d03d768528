// SPDX-License-Identifier: Apache-2.0
// Signals that ask a transfer to end, rather than the process.
#pragma once

#include <csignal>
#include <cstddef>
#include <iterator>

namespace terrace::cli {

// Turns SIGINT, SIGTERM and SIGHUP into a question that the transfer asks, so that what was half done is
// undone; a second signal ends the process at once. What is ignored (nohup, jobs of a script) stays ignored.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};
    action.sa_handler = [](int) { flag = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (size_t index = 0; index < std::size(signals); ++index) {
      ::sigaction(signals[index], nullptr, &before_[index]);
      if (before_[index].sa_handler != SIG_IGN) ::sigaction(signals[index], &action, nullptr);
    }
  }
  ~InterruptGuard() {
    for (size_t index = 0; index < std::size(signals); ++index) {
      ::sigaction(signals[index], &before_[index], nullptr);
    }
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool interrupted() { return flag != 0; }

 private:
  static inline volatile std::sig_atomic_t flag = 0;
  static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3]{};
};

}  // namespace terrace::cli
