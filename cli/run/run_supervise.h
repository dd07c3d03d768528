// SPDX-License-Identifier: Apache-2.0
// The supervisor's process duties: start the program, pass signals on, wait for all it left behind.
//
// Threads   The thread that made it, which must be the only one then: signals are blocked for all later ones.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "allocator/supply/broker.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

class Supervisor {
 public:
  Supervisor();
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Errors    those of fork and exec, with the program's path.
  Status start(const std::string& path, const std::vector<std::string>& command,
               const std::vector<std::string>& environment);
  // After start() failed: why execve did; 0 when it was something before.
  int exec_errno() const { return exec_errno_; }
  // What SIGUSR1 to this process does, instead of being passed on; on the thread that waits.
  void on_ask(std::function<void()> ask) { ask_ = std::move(ask); }
  // Until the program and every process that uses the broker's memory have ended. The program's exit code.
  int wait(supply::Broker& broker);

 private:
  void reap(supply::Broker& broker);
  void note_stopped();
  void look_whether_stopped();
  void pass_on(const signalfd_siginfo& info, supply::Broker& broker);

  sigset_t before_;
  UniqueFd signals_;
  pid_t child_ = -1;
  bool ended_ = false;
  bool stopped_ = false;
  bool seen_stopped_ = false;  // by its state, once
  int exec_errno_ = 0;
  rlimit files_before_ = {};
  int exit_code_ = 0;
  std::function<void()> ask_;
};

}  // namespace terrace::cli
