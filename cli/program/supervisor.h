// SPDX-License-Identifier: Apache-2.0
// The duties of a command that starts a program and holds memory for it: pass signals on, wait for all that it left
// behind, exit as it did.
//
// Place     `terrace run` (cli/run) and `terrace lease exec` (cli/hold).
// Threads   The thread that made it, which must be the only one then: signals are blocked for all later ones.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

// What the program leaves behind when it has ended. Asked on the thread that waits.
class Leftovers {
 public:
  virtual ~Leftovers() = default;
  // One of its processes has ended.
  virtual void look() {}
  // Whether a process still uses the memory that is held for it.
  virtual bool in_use() = 0;
  // Those that are known to, for signals that come after the program's end. Only what it started gets any.
  virtual std::vector<pid_t> processes() = 0;
};

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
  // Before start(): what ends the program when this process is killed (SIGTERM unless it is said).
  void end_program_by(int signal) { end_signal_ = signal; }
  // What SIGUSR1 to this process does, instead of being passed on; on the thread that waits.
  void on_ask(std::function<void()> ask) { ask_ = std::move(ask); }
  // Until the program has ended and nothing that it left behind is in use. The program's exit code.
  int wait(Leftovers& leftovers);
  pid_t program() const { return child_; }  // -1: not started
  // Where those that are blocked are read; -1: there is no descriptor.
  int signals() const { return signals_.get(); }

 private:
  void reap(Leftovers& leftovers);
  void note_stopped();
  void look_whether_stopped();
  void pass_on(const signalfd_siginfo& info, Leftovers& leftovers);

  sigset_t before_;
  UniqueFd signals_;
  pid_t child_ = -1;
  bool ended_ = false;
  bool stopped_ = false;
  bool seen_stopped_ = false;  // by its state, once
  int exec_errno_ = 0;
  int end_signal_ = SIGTERM;
  rlimit files_before_ = {};
  int exit_code_ = 0;
  std::function<void()> ask_;
};

}  // namespace terrace::cli
