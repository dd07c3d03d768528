// SPDX-License-Identifier: Apache-2.0
// Finding, starting and watching the terraced process, for `terrace daemon`.
//
// Threads   One; start_daemon() forks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

// $TERRACED, else beside this program, in the build tree or sbin next to it, else on the PATH.
// Errors    not_found  lists the places that were tried
Result<std::string> find_daemon_program();

struct StartOptions {
  std::string program;
  std::vector<std::string> arguments;  // without argv[0]
  std::string log_path;                // stdout and stderr are appended to it
  uint64_t wait_ns = 0;                // for its socket to listen
};

struct StartedDaemon {
  pid_t pid = 0;
  std::string socket_path;  // as the kernel shows it: where the process really listens
};

// Starts a daemon in the background (own session, no terminal) and waits until it listens on a unix socket.
// Errors    invalid_argument  it refused its flags or configuration (its exit status 2)
//           busy              it could not start (1): another one has the state, or its memory cannot be had
//           unavailable       it ended in another way, or did not listen in time (then it was ended)
//           io_error          the log cannot be opened, or fork or exec failed
//           The first three have its last log lines in their text.
Result<StartedDaemon> start_daemon(const StartOptions& options);

// The path of a unix socket on which process `pid` listens; "" for none (yet).
std::string listening_socket_of(pid_t pid);

// Whether `pid` runs a program named terraced.
bool is_daemon_process(pid_t pid);

// A descriptor that names the process even if its pid is used again.
Result<UniqueFd> open_process(pid_t pid);
Status signal_process(const UniqueFd& process, int number);
// Whether it ended within `wait_ns`.
bool wait_for_end(const UniqueFd& process, uint64_t wait_ns);

}  // namespace terrace::cli
